#include "engine/operators/linear.hpp"

#include <ATen/ExpandUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "engine/autograd/weight_gradients.hpp"
#include "engine/operators/weight_copies.hpp"

namespace troupe::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// In the arithmetic's type: the weight itself, or a copy that is kept.
at::Tensor cast_of(const at::Tensor& weight, at::ScalarType type, weight_copies* copies) {
  if (copies == nullptr || weight.scalar_type() == type) return weight.to(type);
  return copies->get(weight, type, weight_form::cast, [&] { return weight.detach().to(type); });
}

/// The parameters are cast inside: the gradient of each is one task, cast included.
struct linear_function : torch::autograd::Function<linear_function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            const std::shared_ptr<weight_copies>& copies) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto cast = cast_of(weight, rows.scalar_type(), copies.get());
    context->save_for_backward({rows, weight, cast, bias.value_or(at::Tensor())});
    if (!bias) return at::mm(rows, cast.t());
    return at::addmm(bias->to(rows.scalar_type()), rows, cast.t());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto& [rows, weight, cast, bias] = std::tie(saved[0], saved[1], saved[2], saved[3]);
    const auto& gradient = gradients[0];  // [n, out]
    variable_list out(4);
    if (context->needs_input_grad(0)) out[0] = gradient.mm(cast);
    const auto leave = [&](const at::Tensor& parameter, auto compute) {
      if (auto* const later = weight_gradient_collector::current())
        return later->add({parameter, compute}), at::Tensor();
      return compute();
    };
    if (context->needs_input_grad(1))
      out[1] = leave(weight, [gradient, rows = rows, type = weight.scalar_type()]() -> at::Tensor {
        return gradient.t().mm(rows).to(type);
      });
    if (bias.defined() && context->needs_input_grad(2))
      out[2] = leave(bias, [gradient, shape = bias.sizes().vec(), type = bias.scalar_type()] {
        return at::sum_to(gradient, shape).to(type);
      });
    return out;
  }
};

}  // namespace

at::Tensor linear_map(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      const std::shared_ptr<weight_copies>& copies) {
  const auto device = input.device().type();
  const auto type = at::autocast::is_autocast_enabled(device)
                        ? at::autocast::get_autocast_dtype(device)
                        : input.scalar_type();
  const auto added = bias.defined() ? std::optional(bias) : std::nullopt;
  if (input.dim() == 2) return linear_function::apply(input.to(type), weight, added, copies);
  auto shape = input.sizes().vec();
  const auto rows = input.to(type).reshape({-1, shape.back()});  // [n, in]
  shape.back() = weight.size(0);
  return linear_function::apply(rows, weight, added, copies).reshape(shape);
}

}  // namespace troupe::engine
