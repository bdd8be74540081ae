#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/full.h>

#include "optimizers/algorithms.hpp"
#include "optimizers/algorithms/common_rules.hpp"

namespace troupe::optimizers {
namespace {

constexpr std::array adagrad_rules{
    lr_rule(1e-2),
    option_rule{.name = "lr_decay", .help = "Decay of the learning rate with each update"},
    decay_rule(),
    option_rule{.name = "initial_accumulator_value", .help = "Initial value of the sum of squares"},
    eps_rule(1e-10),
    maximize_rule(),
};

template <class T>
struct adagrad_element {
  static constexpr std::array uses{true};
  decayed_gradient<T> decayed;
  T minus_lr, eps;

  void operator()(T& x, T gradient, T& sum) const {
    const T slope = decayed(x, gradient);
    sum = fused(slope, slope, sum);
    x = fused(slope / (sqrt(sum) + eps), minus_lr, x);
  }
};

class adagrad_method {
 public:
  explicit adagrad_method(const options& chosen)
      : decay_(chosen, false),
        lr_(chosen.at("lr")),
        lr_decay_(chosen.at("lr_decay")),
        start_(chosen.at("initial_accumulator_value")),
        eps_(chosen.at("eps")),
        weight_decay_(chosen.at("weight_decay")),
        maximize_(chosen.at("maximize") != 0) {}

  [[nodiscard]] std::vector<slot_use> uses() const { return {{.start = start_}}; }

  template <class T, class Run>
  void with(param_numbers& numbers, const Run& run) const {
    const double before = numbers.scalars[0]++;
    run(adagrad_element<T>{.decayed = decay_.as<T>(),
                           .minus_lr = static_cast<T>(-lr_ / (1 + before * lr_decay_)),
                           .eps = static_cast<T>(eps_)});
  }

  [[nodiscard]] bool is_fused(const at::Tensor& param) const { return takes_whole_updates(param); }
  void run_fused(const tensor_list& params, const tensor_list& gradients,
                 std::span<tensor_list> kept, param_numbers& numbers) const {
    const auto step = at::full({}, ++numbers.scalars[0], params.front().options());
    at::_fused_adagrad_(params, gradients, kept[0], tensor_list(params.size(), step), lr_,
                        lr_decay_, weight_decay_, eps_, maximize_);
  }

 private:
  decay_settings decay_;
  double lr_, lr_decay_, start_, eps_, weight_decay_;
  bool maximize_;
};

}  // namespace

algorithm adagrad() {
  return algorithm_of<adagrad_method>("adagrad", adagrad_rules, {"sum"}, {{"step"}});
}

}  // namespace troupe::optimizers
