#include "optimizers/algorithms.hpp"
#include "optimizers/algorithms/common_rules.hpp"

namespace troupe::optimizers {
namespace {

constexpr std::array<std::string_view, 2> decay_types{"grad", "direct"};

constexpr std::array qhm_rules{
    lr_rule(1e-3),
    share_rule("momentum", 0.9, "Momentum factor"),
    option_rule{
        .name = "nu",
        .fallback = 0.7,
        .most = 1,
        .help = "Weight of the momentum buffer in the step; that of the gradient is 1 - nu"},
    decay_rule(),
    option_rule{.name = "weight_decay_type",
                .words = decay_types,
                .help = "How weight_decay is applied; grad: added to the gradient; direct: shrinks "
                        "the weights"},
};

template <class T>
struct qhm_element {
  static constexpr std::array uses{true};
  decayed_gradient<T> decayed;
  T momentum, fresh, of_buffer, of_gradient;  ///< The last two: minus lr x nu, minus lr x (1 - nu).

  void operator()(T& x, T gradient, T& buffer) const {
    const T slope = decayed(x, gradient);
    buffer = blend(buffer, momentum, slope, fresh);
    x = fused(slope, of_gradient, fused(buffer, of_buffer, x));
  }
};

class qhm_method {
 public:
  explicit qhm_method(const options& chosen)
      : lr_(chosen.at("lr")),
        momentum_(chosen.at("momentum")),
        nu_(chosen.at("nu")),
        decay_(chosen, chosen.at("weight_decay_type") != 0) {}

  template <class T, class Run>
  void with(const param_numbers&, const Run& run) const {
    run(qhm_element<T>{.decayed = decay_.as<T>(),
                       .momentum = static_cast<T>(momentum_),
                       .fresh = static_cast<T>(1 - momentum_),
                       .of_buffer = static_cast<T>(-lr_ * nu_),
                       .of_gradient = static_cast<T>(-lr_ * (1 - nu_))});
  }

 private:
  double lr_, momentum_, nu_;
  decay_settings decay_;
};

}  // namespace

algorithm qhm() {
  return algorithm_of<qhm_method>("qhm", qhm_rules, {"momentum_buffer"});
}

}  // namespace troupe::optimizers
