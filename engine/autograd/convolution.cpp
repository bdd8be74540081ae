#include "engine/autograd/convolution.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mkldnn_convolution.h>
#include <c10/util/BFloat16.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "engine/autograd/weight_gradients.hpp"
#include "engine/kernels/weight_gradient.hpp"

namespace troupe::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A geometry as ATen takes it.
struct sides {
  explicit sides(const convolution_geometry& of)
      : stride{of.stride, of.stride},
        padding{of.padding, of.padding},
        dilation{of.dilation, of.dilation},
        groups(of.groups) {}

  std::array<std::int64_t, 2> stride;
  std::array<std::int64_t, 2> padding;
  std::array<std::int64_t, 2> dilation;
  std::int64_t groups;
};

bool goes_through_onednn(const at::Tensor& input) {
  return input.is_cpu() && input.scalar_type() == at::kFloat && input.numel() > 0 &&
         at::Context::hasMKLDNN() && at::globalContext().userEnabledMkldnn();
}

/// oneDNN's backward takes for granted that both have this layout.
at::MemoryFormat layout_of(const at::Tensor& input, const at::Tensor& weight) {
  const auto last = at::MemoryFormat::ChannelsLast;
  const bool any = input.suggest_memory_format() == last || weight.suggest_memory_format() == last;
  return any ? last : at::MemoryFormat::Contiguous;
}

at::Tensor forward_of(const at::Tensor& input, const at::Tensor& weight, const sides& how) {
  if (goes_through_onednn(input))
    return at::mkldnn_convolution(input, weight, {}, how.padding, how.stride, how.dilation,
                                  how.groups);
  return at::convolution(input, weight, {}, how.stride, how.padding, how.dilation,
                         /*transposed=*/false, /*output_padding=*/{0, 0}, how.groups);
}

enum class gradient_of : std::uint8_t { input, weight };

/// Both gradients are computed apart, whoever asks: unsplit and split are the same arithmetic.
at::Tensor backward_of(gradient_of which, const at::Tensor& gradient, const at::Tensor& input,
                       const at::Tensor& weight, const sides& how) {
  const bool to_input = which == gradient_of::input;
  const std::array<bool, 3> wanted{to_input, !to_input, /*bias=*/false};
  if (!goes_through_onednn(input)) {
    auto [input_gradient, weight_gradient, none] =
        at::convolution_backward(gradient, input, weight, at::OptionalIntArrayRef(), how.stride,
                                 how.padding, how.dilation, /*transposed=*/false,
                                 /*output_padding=*/{0, 0}, how.groups, wanted);
    return to_input ? input_gradient : weight_gradient;
  }
  // oneDNN's backward has no operator of its own, and the dispatcher in front of it is not
  // exported. It is one function for every CPU, so the table's default entry is it.
  const auto onednn_backward = decltype(at::native::mkldnn_convolution_backward_stub)::DEFAULT;
  const auto layout = layout_of(input, weight);
  auto [input_gradient, weight_gradient, none] =
      onednn_backward(input.contiguous(layout), gradient, weight.contiguous(layout), how.padding,
                      how.stride, how.dilation, how.groups, wanted);
  return to_input ? input_gradient : weight_gradient;
}

/// Where Troupe's own kernel takes a weight's gradient: its convolution. With several intra-op
/// threads oneDNN's was measured to be faster. Asked on the stage's own thread, so that a helper
/// which computes the gradient does so in the same way.
std::optional<kernels::convolution_shape> own_shape(const at::Tensor& input,
                                                    const at::Tensor& weight, const sides& how) {
  const auto last = at::MemoryFormat::ChannelsLast;
  const auto type = input.scalar_type();
  const bool fits = at::get_num_threads() == 1 && input.is_cpu() &&
                    (type == at::kFloat || type == at::kBFloat16) &&
                    weight.scalar_type() == at::kFloat && input.suggest_memory_format() == last &&
                    input.is_contiguous(last) && input.numel() > 0 && how.groups == 1 &&
                    how.dilation[0] == 1;
  if (!fits) return std::nullopt;
  const kernels::convolution_shape shape{input.size(0),  input.size(1),  input.size(2),
                                         input.size(3),  weight.size(0), weight.size(2),
                                         weight.size(3), how.stride[0],  how.padding[0]};
  static const auto best = kernels::best_instructions();
  const bool wins = type == at::kFloat ? kernels::outruns_onednn<float>(best, shape)
                                       : kernels::outruns_onednn<c10::BFloat16>(best, shape);
  return wins ? std::optional(shape) : std::nullopt;
}

template <class T>
at::Tensor own_weight_gradient(const at::Tensor& gradient, const at::Tensor& input,
                               const at::Tensor& weight, const kernels::convolution_shape& shape) {
  const auto last = at::MemoryFormat::ChannelsLast;
  const auto given = gradient.contiguous(last);
  auto made = at::empty(weight.sizes(), weight.options().requires_grad(false), last);
  kernels::weight_gradient(kernels::best_instructions(), shape, input.const_data_ptr<T>(),
                           given.const_data_ptr<T>(), made.mutable_data_ptr<float>());
  return made;
}

/// In the type of the weight; `cast` is the weight in that of the input.
at::Tensor weight_gradient_of(const at::Tensor& gradient, const at::Tensor& input,
                              const at::Tensor& weight, const at::Tensor& cast, const sides& how,
                              const std::optional<kernels::convolution_shape>& shape) {
  if (!shape)
    return backward_of(gradient_of::weight, gradient, input, cast, how).to(weight.scalar_type());
  return input.scalar_type() == at::kFloat
             ? own_weight_gradient<float>(gradient, input, weight, *shape)
             : own_weight_gradient<c10::BFloat16>(gradient, input, weight, *shape);
}

/// The weight is the parameter itself, cast inside: its gradient is one task, cast included.
struct convolution_function : torch::autograd::Function<convolution_function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, std::int64_t stride, std::int64_t padding,
                            std::int64_t dilation, std::int64_t groups) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto cast = weight.to(input.scalar_type());
    context->save_for_backward({input, weight, cast});
    context->saved_data["geometry"] = std::vector<std::int64_t>{stride, padding, dilation, groups};
    return forward_of(input, cast, sides({stride, padding, dilation, groups}));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto& [input, weight, cast] = std::tie(saved[0], saved[1], saved[2]);
    const auto of = context->saved_data["geometry"].toIntVector();
    const sides how({of[0], of[1], of[2], of[3]});
    variable_list out(6);
    if (context->needs_input_grad(0))
      out[0] = backward_of(gradient_of::input, gradients[0], input, cast, how);
    if (!context->needs_input_grad(1)) return out;
    const auto weight_gradient = [gradient = gradients[0], input = input, weight = weight,
                                  cast = cast, how, own = own_shape(input, weight, how)] {
      return weight_gradient_of(gradient, input, weight, cast, how, own);
    };
    if (auto* const later = weight_gradient_collector::current())
      later->add({weight, weight_gradient});
    else
      out[1] = weight_gradient();
    return out;
  }
};

}  // namespace

at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight,
                    const convolution_geometry& how) {
  const auto device = input.device().type();
  const auto type = at::autocast::is_autocast_enabled(device)
                        ? at::autocast::get_autocast_dtype(device)
                        : input.scalar_type();
  return convolution_function::apply(input.to(type), weight, how.stride, how.padding, how.dilation,
                                     how.groups);
}

}  // namespace troupe::engine
