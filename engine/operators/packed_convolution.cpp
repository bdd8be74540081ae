#include "engine/operators/packed_convolution.hpp"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <utility>

#include "engine/kernels/weight_gradient.hpp"

namespace troupe::engine {
namespace {

using c10::IValue;
using operation = std::optional<c10::OperatorHandle>;

/// They have no functions in ATen's headers.
struct operations {
  static operation find(const char* name) {
    return c10::Dispatcher::singleton().findSchema({std::string("mkldnn::") + name, ""});
  }

  operation pack_forward = find("_reorder_convolution_weight");
  operation forward = find("_convolution_pointwise");
  operation pack_transposed = find("_reorder_convolution_transpose_weight");
  operation transposed = find("_convolution_transpose_pointwise");
  operation has_bf16 = find("_is_mkldnn_bf16_supported");

  [[nodiscard]] bool complete() const {
    return pack_forward && forward && pack_transposed && transposed && has_bf16;
  }
};

const operations& all() {
  static const operations found;
  return found;
}

IValue call(const operation& which, torch::jit::Stack arguments) {
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  which->callBoxed(arguments);
  return std::move(arguments.back());
}

bool has_bf16() {
  static const bool has = call(all().has_bf16, {}).toBool();
  return has;
}

IValue list_of(const std::array<std::int64_t, 2>& of) {
  return at::IntArrayRef(of);
}

/// Rows and columns of the input that a transposed convolution of the output would leave out.
std::array<std::int64_t, 2> extra(at::IntArrayRef input_shape, at::IntArrayRef output_shape,
                                  at::IntArrayRef kernel, const convolution_sides& how) {
  std::array<std::int64_t, 2> left{};
  for (std::size_t i = 0; i < 2; ++i)
    left[i] = input_shape[i + 2] - ((output_shape[i + 2] - 1) * how.stride[i] - 2 * how.padding[i] +
                                    how.dilation[i] * (kernel[i + 2] - 1) + 1);
  return left;
}

/// What the operators take of functions that may follow: none does.
void add_nothing(torch::jit::Stack& to) {
  to.emplace_back(std::string("none"));
  to.emplace_back(c10::List<std::optional<at::Scalar>>());
  to.emplace_back(std::string());
}

}  // namespace

bool takes_packed(const at::Tensor& input, const convolution_sides& how) {
  const auto type = input.scalar_type();
  return how.groups == 1 && input.is_cpu() && input.dim() == 4 && input.numel() > 0 &&
         (type == at::kFloat || type == at::kBFloat16) &&
         input.suggest_memory_format() == at::MemoryFormat::ChannelsLast &&
         input.is_contiguous(at::MemoryFormat::ChannelsLast) && at::Context::hasMKLDNN() &&
         at::globalContext().userEnabledMkldnn() && all().complete() &&
         (type == at::kFloat || has_bf16());
}

bool takes_packed_gradient(const at::Tensor& input, const convolution_sides& how) {
  const bool has_strides = how.stride[0] > 1 || how.stride[1] > 1;
  const bool adds_otherwise =
      has_strides && input.scalar_type() == at::kBFloat16 && kernels::has_amx();
  return !adds_otherwise && takes_packed(input, how);
}

at::Tensor pack_for_forward(const at::Tensor& weight, at::IntArrayRef input_shape,
                            const convolution_sides& how) {
  return call(all().pack_forward, {weight, list_of(how.padding), list_of(how.stride),
                                   list_of(how.dilation), how.groups, input_shape})
      .toTensor();
}

at::Tensor packed_forward(const at::Tensor& input, const at::Tensor& packed,
                          const convolution_sides& how) {
  torch::jit::Stack given{
      input,     packed, IValue(), list_of(how.padding), list_of(how.stride), list_of(how.dilation),
      how.groups};
  add_nothing(given);
  return call(all().forward, std::move(given)).toTensor();
}

at::Tensor pack_for_input_gradient(const at::Tensor& weight, at::IntArrayRef input_shape,
                                   at::IntArrayRef output_shape, const convolution_sides& how) {
  return call(all().pack_transposed,
              {weight, list_of(how.padding),
               list_of(extra(input_shape, output_shape, weight.sizes(), how)), list_of(how.stride),
               list_of(how.dilation), how.groups, output_shape})
      .toTensor();
}

at::Tensor packed_input_gradient(const at::Tensor& gradient, const at::Tensor& packed,
                                 at::IntArrayRef input_shape, at::IntArrayRef kernel,
                                 const convolution_sides& how) {
  const auto given_gradient = gradient.contiguous(at::MemoryFormat::ChannelsLast);
  torch::jit::Stack given{given_gradient,
                          packed,
                          IValue(),
                          list_of(how.padding),
                          list_of(extra(input_shape, gradient.sizes(), kernel, how)),
                          list_of(how.stride),
                          list_of(how.dilation),
                          how.groups};
  add_nothing(given);
  return call(all().transposed, std::move(given)).toTensor();
}

}  // namespace troupe::engine
