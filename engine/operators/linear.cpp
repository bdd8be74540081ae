#include "engine/operators/linear.hpp"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>
#include <vector>

#include "engine/autograd/autocast.hpp"
#include "engine/autograd/weight_gradients.hpp"
#include "engine/operators/weight_copies.hpp"

namespace troupe::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// GPUs multiply matrices of 16 bits several times as fast where rows are whole units of 16 bytes,
/// in the product too. So many outputs are computed there, the last of which nobody asked for.
std::int64_t computed_outputs(const at::Tensor& rows, std::int64_t outputs) {
  constexpr std::int64_t unit = 8;
  constexpr std::int64_t worth_it = 256;  // a copy of a narrower product costs as much
  const bool by_units = !rows.is_cpu() && at::isReducedFloatingType(rows.scalar_type());
  return by_units && outputs >= worth_it ? (outputs + unit - 1) / unit * unit : outputs;
}

/// A parameter [out, ..] with zeros for the outputs that nobody asked for.
at::Tensor padded(const at::Tensor& parameter, std::int64_t outputs) {
  const auto more = outputs - parameter.size(0);
  if (more == 0) return parameter;
  std::vector<std::int64_t> widths(2 * static_cast<std::size_t>(parameter.dim()));
  widths.back() = more;
  return at::constant_pad_nd(parameter, widths);
}

/// In the arithmetic's type and with so many outputs: the weight itself, or a copy that is kept.
at::Tensor cast_of(const at::Tensor& weight, at::ScalarType type, std::int64_t outputs,
                   weight_copies* copies) {
  if (weight.scalar_type() == type && weight.size(0) == outputs) return weight;
  const auto make = [&] { return padded(weight.detach().to(type), outputs); };
  return copies == nullptr ? make() : copies->get(weight, type, weight_form::cast, make);
}

/// The parameters are cast inside: the gradient of each is one task, cast included. Gives all the
/// outputs that are computed.
struct linear_function : torch::autograd::Function<linear_function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            const std::shared_ptr<weight_copies>& copies) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto outputs = computed_outputs(rows, weight.size(0));
    const auto cast = cast_of(weight, rows.scalar_type(), outputs, copies.get());
    context->save_for_backward({rows, weight, cast, bias.value_or(at::Tensor())});
    if (!bias) return at::mm(rows, cast.t());
    return at::addmm(padded(bias->to(rows.scalar_type()), outputs), rows, cast.t());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto& [rows, weight, cast, bias] = std::tie(saved[0], saved[1], saved[2], saved[3]);
    const auto& gradient = gradients[0];  // [n, outputs that are computed]
    variable_list out(4);
    if (context->needs_input_grad(0)) out[0] = gradient.mm(cast);
    const auto leave = [&](const at::Tensor& parameter, auto compute) {
      auto task = cast_when_added(parameter, std::move(compute));
      if (auto* const later = weight_gradient_collector::current())
        return later->add(std::move(task)), at::Tensor();
      return task.gradient();
    };
    if (context->needs_input_grad(1))
      out[1] = leave(weight, [gradient, rows = rows, asked = weight.size(0)] {
        return gradient.t().mm(rows).narrow(0, 0, asked);
      });
    if (bias.defined() && context->needs_input_grad(2))
      out[2] = leave(bias, [gradient, shape = bias.sizes().vec()] {
        return at::sum_to(gradient.narrow(1, 0, shape.back()), shape);
      });
    return out;
  }
};

}  // namespace

at::Tensor linear_map(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      const std::shared_ptr<weight_copies>& copies) {
  const auto type = current_autocast(input.device().type()).value_or(input.scalar_type());
  const auto added = bias.defined() ? std::optional(bias) : std::nullopt;
  const auto outputs = weight.size(0);
  const auto map = [&](const at::Tensor& rows) {  // [n, in]
    const auto computed = linear_function::apply(rows, weight, added, copies);
    return computed.size(1) == outputs ? computed : computed.narrow(1, 0, outputs);
  };
  if (input.dim() == 2) return map(input.to(type));
  auto shape = input.sizes().vec();
  const auto rows = input.to(type).reshape({-1, shape.back()});
  shape.back() = outputs;
  return map(rows).reshape(shape);
}

}  // namespace troupe::engine
