#include "optimizers/algorithms.hpp"
#include "optimizers/algorithms/moments.hpp"

namespace troupe::optimizers {
namespace {

constexpr std::array radam_rules{
    lr_rule(1e-3), beta1_rule(),     beta2_rule(),    eps_rule(1e-8),
    decay_rule(),  decoupled_rule(), maximize_rule(),
};

/// `rectified`: there have been enough steps to know the variance.
template <class T, bool rectified>
struct radam_element {
  static constexpr std::array uses{true, true};
  decayed_gradient<T> decayed;
  moment_element<T> moments;
  T minus_step, eps;

  void operator()(T& x, T gradient, T& average, T& square) const {
    moments(decayed(x, gradient), average, square);
    x = fused(rectified ? average / (sqrt(square) + eps) : average, minus_step, x);
  }
};

class radam_method {
 public:
  explicit radam_method(const options& chosen)
      : decay_(chosen, chosen.at("decoupled_weight_decay") != 0),
        moments_(chosen),
        lr_(chosen.at("lr")),
        eps_(chosen.at("eps")) {}

  template <class T, class Run>
  void with(param_numbers& numbers, const Run& run) {
    double& step = numbers.scalars[0];
    moments_.count(step);
    const double most = 2 / (1 - moments_.beta2) - 1;
    const double length = most - 2 * step * moments_.power2() / moments_.correction2();
    const double plain = -lr_ / moments_.correction1();
    if (length <= 5) return run(element<T, false>(plain));
    const double rectification =
        std::sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
    run(element<T, true>(plain * rectification * std::sqrt(moments_.correction2())));
  }

 private:
  template <class T, bool rectified>
  [[nodiscard]] radam_element<T, rectified> element(double minus_step) const {
    return {.decayed = decay_.as<T>(),
            .moments = moment_element<T>(moments_),
            .minus_step = static_cast<T>(minus_step),
            .eps = static_cast<T>(eps_)};
  }

  decay_settings decay_;
  moment_settings moments_;
  double lr_, eps_;
};

}  // namespace

algorithm radam() {
  return algorithm_of<radam_method>("radam", radam_rules, {"exp_avg", "exp_avg_sq"}, {{"step"}});
}

}  // namespace troupe::optimizers
