#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/neg.h>

#include <bit>

#include "optimizers/algorithms.hpp"
#include "optimizers/layout.hpp"
#include "optimizers/options.hpp"

namespace troupe::optimizers {
namespace {

constexpr std::array sgd_rules{
    option_rule{.name = "lr", .fallback = 1e-3, .help = "Learning rate"},
    option_rule{.name = "momentum", .help = "Momentum factor"},
    option_rule{.name = "dampening",
                .least = -largest_option,
                .help = "Dampening: the gradient is multiplied by 1 - dampening before it is "
                        "added to the momentum buffer"},
    option_rule{.name = "weight_decay", .help = "Weight decay coefficient"},
    option_rule{.name = "nesterov", .is_flag = true, .help = "Use Nesterov momentum"},
    option_rule{.name = "maximize", .is_flag = true, .help = "Maximize instead of minimize"},
};

enum class buffer_use : std::uint8_t { none, first, running };

// Rounds as ATen's operators do one after the other: factors are rounded to T, every add of a
// scaled tensor is one FMA.
template <class T, bool decays, buffer_use use, bool nesterov>
struct sgd_element {
  static constexpr std::array uses{use != buffer_use::none};
  using bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

  bits flip;  ///< The sign bit if the gradient is to be negated, else 0.
  T minus_lr, momentum, undamped, weight_decay;

  void operator()(T& x, T gradient, T& buffer) const {
    T change = std::bit_cast<T>(static_cast<bits>(std::bit_cast<bits>(gradient) ^ flip));
    if constexpr (decays) change = fused(x, weight_decay, change);
    if constexpr (use != buffer_use::none) {
      if constexpr (use == buffer_use::running) {
        const T shrunk = buffer * momentum;
        buffer = fused(change, undamped, shrunk);
      } else {
        buffer = change;
      }
      change = nesterov ? fused(buffer, momentum, change) : buffer;
    }
    x = fused(change, minus_lr, x);
  }
};

class sgd_method {
 public:
  explicit sgd_method(const options& chosen)
      : lr_(chosen.at("lr")),
        momentum_(chosen.at("momentum")),
        dampening_(chosen.at("dampening")),
        weight_decay_(chosen.at("weight_decay")),
        nesterov_(chosen.at("nesterov") != 0),
        maximize_(chosen.at("maximize") != 0) {}

  [[nodiscard]] std::vector<slot_use> uses() const { return {{.used = momentum_ != 0}}; }

  template <class T, class Run>
  void with(const param_numbers& numbers, const Run& run) const {
    const auto choose = [&](auto decays, auto nesterov) {
      if (momentum_ == 0)
        run(element<T, decays, buffer_use::none, false>());
      else if (numbers.fresh)
        run(element<T, decays, buffer_use::first, nesterov>());
      else
        run(element<T, decays, buffer_use::running, nesterov>());
    };
    with_flags(choose, weight_decay_ != 0, nesterov_);
  }

  [[nodiscard]] bool wants_operators(const at::Tensor& param, const at::Tensor& gradient,
                                     std::span<at::Tensor* const> kept) const {
    const auto is_strided = [](const at::Tensor& each) { return each.layout() == at::kStrided; };
    const bool one_pass = param.scalar_type() == at::kFloat || param.scalar_type() == at::kDouble;
    return !one_pass || (param.is_cpu() && !is_plain(param)) || !is_strided(gradient) ||
           (kept[0] != nullptr && kept[0]->defined() && !is_strided(*kept[0]));
  }

  [[nodiscard]] bool is_in_place() const {
    return !maximize_ && weight_decay_ == 0 && !(nesterov_ && momentum_ != 0);
  }
  // The same in place, on many parameters at once.
  void run_tensors(tensor_list& params, tensor_list gradients, std::span<tensor_list> kept,
                   const param_numbers& numbers) const {
    if (maximize_) gradients = at::_foreach_neg(gradients);
    if (weight_decay_ != 0) gradients = at::_foreach_add(gradients, params, weight_decay_);
    if (momentum_ != 0) {
      const auto& buffers = kept[0];
      if (numbers.fresh) {
        at::_foreach_copy_(buffers, gradients);
      } else {
        at::_foreach_mul_(buffers, momentum_);
        at::_foreach_add_(buffers, gradients, 1 - dampening_);
      }
      gradients = nesterov_ ? at::_foreach_add(gradients, buffers, momentum_) : buffers;
    }
    at::_foreach_add_(params, gradients, -lr_);
  }

  // Where ATen's kernel maximizes, weight decay pulls the other way: not with torch.optim.SGD.
  [[nodiscard]] bool is_fused(const at::Tensor& param) const {
    return !maximize_ && takes_whole_updates(param);
  }
  void run_fused(const tensor_list& params, const tensor_list& gradients,
                 std::span<tensor_list> kept, const param_numbers& numbers) const {
    const bool is_first = momentum_ != 0 && numbers.fresh;
    at::_fused_sgd_(params, gradients, kept[0], weight_decay_, momentum_, lr_, dampening_,
                    nesterov_, maximize_, is_first);
  }

  // What torch.optim.SGD does, operator by operator.
  void run_operators(at::Tensor& param, at::Tensor gradient,
                     std::span<at::Tensor* const> kept) const {
    if (maximize_) gradient = at::neg(gradient);
    if (weight_decay_ != 0) gradient = at::add(gradient, param, weight_decay_);
    if (momentum_ != 0) {
      at::Tensor& buffer = *kept[0];
      if (buffer.defined())
        buffer.mul_(momentum_).add_(gradient, 1 - dampening_);
      else
        buffer = at::clone(gradient.detach());
      gradient = nesterov_ ? at::add(gradient, buffer, momentum_) : buffer;
    }
    param.add_(gradient, -lr_);
  }

 private:
  template <class T, bool decays, buffer_use use, bool nesterov>
  [[nodiscard]] sgd_element<T, decays, use, nesterov> element() const {
    using made = sgd_element<T, decays, use, nesterov>;
    using bits = typename made::bits;
    return {.flip = maximize_ ? bits{1} << (8 * sizeof(T) - 1) : bits{0},
            .minus_lr = static_cast<T>(-lr_),
            .momentum = static_cast<T>(momentum_),
            .undamped = static_cast<T>(1 - dampening_),
            .weight_decay = static_cast<T>(weight_decay_)};
  }

  double lr_, momentum_, dampening_, weight_decay_;
  bool nesterov_, maximize_;
};

result<void> check_sgd(const options& given) {
  if (given.at("nesterov") == 0) return {};
  if (given.at("momentum") > 0 && given.at("dampening") == 0) return {};
  return fail(errc::bad_config,
              "optimizer 'sgd': nesterov needs momentum > 0 and dampening = 0, and they are " +
                  to_text(given.at("momentum")) + " and " + to_text(given.at("dampening")));
}

}  // namespace

algorithm sgd() {
  auto made = algorithm_of<sgd_method>("sgd", sgd_rules, {"momentum_buffer"});
  made.check = check_sgd;
  return made;
}

}  // namespace troupe::optimizers
