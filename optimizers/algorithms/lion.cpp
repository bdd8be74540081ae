#include "optimizers/algorithms.hpp"
#include "optimizers/algorithms/common_rules.hpp"

namespace troupe::optimizers {
namespace {

constexpr std::array lion_rules{
    lr_rule(1e-4),
    share_rule("beta1", 0.9, "Weight of the old average of gradients in the step"),
    share_rule("beta2", 0.99, "Decay rate of the average of gradients"),
    decay_rule(),
    maximize_rule(),
};

template <class T>
struct lion_element {
  static constexpr std::array uses{true};
  decayed_gradient<T> decayed;
  T beta1, fresh1, beta2, fresh2, minus_lr;

  void operator()(T& x, T gradient, T& average) const {
    const T slope = decayed(x, gradient);
    x = fused(sign_of(blend(average, beta1, slope, fresh1)), minus_lr, x);
    average = blend(average, beta2, slope, fresh2);
  }
};

class lion_method {
 public:
  explicit lion_method(const options& chosen)
      : decay_(chosen, true),
        lr_(chosen.at("lr")),
        beta1_(chosen.at("beta1")),
        beta2_(chosen.at("beta2")) {}

  template <class T, class Run>
  void with(const param_numbers&, const Run& run) const {
    run(lion_element<T>{.decayed = decay_.as<T>(),
                        .beta1 = static_cast<T>(beta1_),
                        .fresh1 = static_cast<T>(1 - beta1_),
                        .beta2 = static_cast<T>(beta2_),
                        .fresh2 = static_cast<T>(1 - beta2_),
                        .minus_lr = static_cast<T>(-lr_)});
  }

 private:
  decay_settings decay_;
  double lr_, beta1_, beta2_;
};

}  // namespace

algorithm lion() {
  return algorithm_of<lion_method>("lion", lion_rules, {"exp_avg"});
}

}  // namespace troupe::optimizers
