#include "optimizers/algorithms.hpp"
#include "optimizers/algorithms/common_rules.hpp"

namespace troupe::optimizers {
namespace {

constexpr std::array rmsprop_rules{
    lr_rule(1e-2),
    option_rule{.name = "alpha",
                .fallback = 0.99,
                .most = 1,
                .help = "Decay rate of the average of squares"},
    eps_rule(1e-8),
    decay_rule(),
    option_rule{.name = "momentum", .help = "Momentum factor"},
    flag_rule("centered", "Use centered RMSprop: divide by the gradient's estimated variance"),
    maximize_rule(),
};

template <class T, bool has_momentum, bool centered>
struct rmsprop_element {
  static constexpr std::array uses{true, has_momentum, centered};
  decayed_gradient<T> decayed;
  T minus_lr, alpha, fresh, momentum, eps;

  void operator()(T& x, T gradient, T& square, T& buffer, T& average) const {
    const T slope = decayed(x, gradient);
    square = blend(square, alpha, slope * slope, fresh);
    T variance = square;
    if constexpr (centered) {
      average = blend(average, alpha, slope, fresh);
      variance = fused(-average, average, square);
    }
    T change = slope / (sqrt(variance) + eps);
    if constexpr (has_momentum) change = buffer = fused(buffer, momentum, change);
    x = fused(change, minus_lr, x);
  }
};

class rmsprop_method {
 public:
  explicit rmsprop_method(const options& chosen)
      : decay_(chosen, false),
        lr_(chosen.at("lr")),
        alpha_(chosen.at("alpha")),
        momentum_(chosen.at("momentum")),
        eps_(chosen.at("eps")),
        centered_(chosen.at("centered") != 0) {}

  [[nodiscard]] std::vector<slot_use> uses() const {
    return {{}, {.used = momentum_ > 0}, {.used = centered_}};
  }

  template <class T, class Run>
  void with(const param_numbers&, const Run& run) const {
    const auto choose = [&](auto has_momentum, auto centered) {
      run(rmsprop_element<T, has_momentum, centered>{.decayed = decay_.as<T>(),
                                                     .minus_lr = static_cast<T>(-lr_),
                                                     .alpha = static_cast<T>(alpha_),
                                                     .fresh = static_cast<T>(1 - alpha_),
                                                     .momentum = static_cast<T>(momentum_),
                                                     .eps = static_cast<T>(eps_)});
    };
    with_flags(choose, momentum_ > 0, centered_);
  }

 private:
  decay_settings decay_;
  double lr_, alpha_, momentum_, eps_;
  bool centered_;
};

}  // namespace

algorithm rmsprop() {
  return algorithm_of<rmsprop_method>("rmsprop", rmsprop_rules,
                                      {"square_avg", "momentum_buffer", "grad_avg"});
}

}  // namespace troupe::optimizers
