#include "optimizers/algorithms.hpp"
#include "optimizers/algorithms/common_rules.hpp"

namespace troupe::optimizers {
namespace {

constexpr std::array adadelta_rules{
    lr_rule(1),
    option_rule{
        .name = "rho", .fallback = 0.9, .most = 1, .help = "Decay rate of the averages of squares"},
    eps_rule(1e-6),
    decay_rule(),
    maximize_rule(),
};

template <class T>
struct adadelta_element {
  static constexpr std::array uses{true, true};
  decayed_gradient<T> decayed;
  T minus_lr, rho, fresh, eps;

  void operator()(T& x, T gradient, T& square, T& deltas) const {
    const T slope = decayed(x, gradient);
    square = blend(square, rho, slope * slope, fresh);
    const T delta = sqrt(deltas + eps) / sqrt(square + eps) * slope;
    deltas = blend(deltas, rho, delta * delta, fresh);
    x = fused(delta, minus_lr, x);
  }
};

class adadelta_method {
 public:
  explicit adadelta_method(const options& chosen)
      : decay_(chosen, false),
        lr_(chosen.at("lr")),
        rho_(chosen.at("rho")),
        eps_(chosen.at("eps")) {}

  template <class T, class Run>
  void with(const param_numbers&, const Run& run) const {
    run(adadelta_element<T>{.decayed = decay_.as<T>(),
                            .minus_lr = static_cast<T>(-lr_),
                            .rho = static_cast<T>(rho_),
                            .fresh = static_cast<T>(1 - rho_),
                            .eps = static_cast<T>(eps_)});
  }

 private:
  decay_settings decay_;
  double lr_, rho_, eps_;
};

}  // namespace

algorithm adadelta() {
  return algorithm_of<adadelta_method>("adadelta", adadelta_rules, {"square_avg", "acc_delta"});
}

}  // namespace troupe::optimizers
