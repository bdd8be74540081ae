#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include "optimizers/algorithms.hpp"
#include "optimizers/algorithms/moments.hpp"

namespace troupe::optimizers {
namespace {

constexpr auto rules_with(double decay) {
  return std::array{
      lr_rule(1e-3),
      beta1_rule(),
      beta2_rule(),
      eps_rule(1e-8),
      decay_rule(decay),
      flag_rule("amsgrad", "Use AMSGrad: divide by the largest second moment so far"),
      maximize_rule(),
  };
}

template <bool decoupled>
class adam_method {
 public:
  explicit adam_method(const options& chosen)
      : decay_(chosen, decoupled),
        moments_(chosen),
        lr_(chosen.at("lr")),
        eps_(chosen.at("eps")),
        weight_decay_(chosen.at("weight_decay")),
        maximize_(chosen.at("maximize") != 0),
        amsgrad_(chosen.at("amsgrad") != 0) {}

  [[nodiscard]] std::vector<slot_use> uses() const { return {{}, {}, {.used = amsgrad_}}; }

  template <class T, class Run>
  void with(param_numbers& numbers, const Run& run) {
    moments_.count(numbers.scalars[0]);
    with_flags([&](auto amsgrad) { run(adam_of<T, amsgrad>(decay_, moments_, lr_, eps_)); },
               amsgrad_);
  }

  [[nodiscard]] bool is_fused(const at::Tensor& param) const { return takes_whole_updates(param); }
  void run_fused(const tensor_list& params, const tensor_list& gradients,
                 std::span<tensor_list> kept, param_numbers& numbers) {
    moments_.count(numbers.scalars[0]);
    const auto& first = params.front();
    const tensor_list steps(params.size(), at::full({}, numbers.scalars[0], first.options()));
    if constexpr (decoupled)
      at::_fused_adamw_(params, gradients, kept[0], kept[1], kept[2], steps, lr_, moments_.beta1,
                        moments_.beta2, weight_decay_, eps_, amsgrad_, maximize_);
    else
      at::_fused_adam_(params, gradients, kept[0], kept[1], kept[2], steps, lr_, moments_.beta1,
                       moments_.beta2, weight_decay_, eps_, amsgrad_, maximize_);
  }

 private:
  decay_settings decay_;
  moment_settings moments_;
  double lr_, eps_, weight_decay_;
  bool maximize_, amsgrad_;
};

template <bool decoupled>
algorithm make(const char* name, double decay) {
  return algorithm_of<adam_method<decoupled>>(
      name, rules_with(decay), {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, {{"step"}});
}

}  // namespace

algorithm adam() {
  return make<false>("adam", 0);
}

algorithm adamw() {
  return make<true>("adamw", 1e-2);
}

}  // namespace troupe::optimizers
