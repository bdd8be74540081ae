#include "optimizers/algorithms.hpp"
#include "optimizers/algorithms/moments.hpp"

namespace troupe::optimizers {
namespace {

constexpr std::array nadam_rules{
    lr_rule(2e-3),
    beta1_rule(),
    beta2_rule(),
    eps_rule(1e-8),
    decay_rule(),
    option_rule{.name = "momentum_decay",
                .fallback = 4e-3,
                .help = "Rate at which momentum approaches beta1"},
    decoupled_rule(),
    maximize_rule(),
};

template <class T>
struct nadam_element {
  static constexpr std::array uses{true, true};
  decayed_gradient<T> decayed;
  moment_element<T> moments;
  T of_gradient, of_average, root_scale, eps;

  void operator()(T& x, T gradient, T& average, T& square) const {
    const T slope = decayed(x, gradient);
    moments(slope, average, square);
    const T divisor = fused(sqrt(square), root_scale, eps);
    x = fused(slope / divisor, of_gradient, x);
    x = fused(average / divisor, of_average, x);
  }
};

class nadam_method {
 public:
  explicit nadam_method(const options& chosen)
      : decay_(chosen, chosen.at("decoupled_weight_decay") != 0),
        moments_(chosen),
        lr_(chosen.at("lr")),
        eps_(chosen.at("eps")),
        momentum_decay_(chosen.at("momentum_decay")) {}

  template <class T, class Run>
  void with(param_numbers& numbers, const Run& run) {
    auto& [step, product] = numbers.scalars;
    moments_.count(step);
    const double now = momentum(step), next = momentum(step + 1);
    product *= now;
    run(nadam_element<T>{.decayed = decay_.as<T>(),
                         .moments = moment_element<T>(moments_),
                         .of_gradient = static_cast<T>(-lr_ * (1 - now) / (1 - product)),
                         .of_average = static_cast<T>(-lr_ * next / (1 - product * next)),
                         .root_scale = static_cast<T>(1 / std::sqrt(moments_.correction2())),
                         .eps = static_cast<T>(eps_)});
  }

 private:
  [[nodiscard]] double momentum(double step) const {
    return moments_.beta1 * (1 - 0.5 * std::pow(0.96, step * momentum_decay_));
  }

  decay_settings decay_;
  moment_settings moments_;
  double lr_, eps_, momentum_decay_;
};

}  // namespace

algorithm nadam() {
  return algorithm_of<nadam_method>("nadam", nadam_rules, {"exp_avg", "exp_avg_sq"},
                                    {{"step"}, {"mu_product", 1}});
}

}  // namespace troupe::optimizers
