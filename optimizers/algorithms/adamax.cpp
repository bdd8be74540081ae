#include "optimizers/algorithms.hpp"
#include "optimizers/algorithms/moments.hpp"

namespace troupe::optimizers {
namespace {

constexpr std::array adamax_rules{
    lr_rule(2e-3), beta1_rule(), beta2_rule(), eps_rule(1e-8), decay_rule(), maximize_rule(),
};

template <class T>
struct adamax_element {
  static constexpr std::array uses{true, true};
  decayed_gradient<T> decayed;
  T beta1, fresh1, beta2, minus_step, eps;

  void operator()(T& x, T gradient, T& average, T& norm) const {
    const T slope = decayed(x, gradient);
    average = blend(average, beta1, slope, fresh1);
    norm = larger(norm * beta2, abs(slope) + eps);
    x = fused(average / norm, minus_step, x);
  }
};

class adamax_method {
 public:
  explicit adamax_method(const options& chosen)
      : decay_(chosen, false), moments_(chosen), lr_(chosen.at("lr")), eps_(chosen.at("eps")) {}

  template <class T, class Run>
  void with(param_numbers& numbers, const Run& run) {
    moments_.count(numbers.scalars[0]);
    run(adamax_element<T>{.decayed = decay_.as<T>(),
                          .beta1 = static_cast<T>(moments_.beta1),
                          .fresh1 = static_cast<T>(1 - moments_.beta1),
                          .beta2 = static_cast<T>(moments_.beta2),
                          .minus_step = static_cast<T>(-lr_ / moments_.correction1()),
                          .eps = static_cast<T>(eps_)});
  }

 private:
  decay_settings decay_;
  moment_settings moments_;
  double lr_, eps_;
};

}  // namespace

algorithm adamax() {
  return algorithm_of<adamax_method>("adamax", adamax_rules, {"exp_avg", "exp_inf"}, {{"step"}});
}

}  // namespace troupe::optimizers
