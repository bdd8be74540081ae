#include "engine/operators/joint_normalization.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/var_mean.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/device/device_streams.hpp"

namespace troupe::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Of [N, C, ..] all dimensions but C.
std::vector<std::int64_t> dims_beside_channels(const at::Tensor& of) {
  std::vector<std::int64_t> dims;
  for (std::int64_t i = 0; i < of.dim(); ++i)
    if (i != 1) dims.push_back(i);
  return dims;
}

/// Numbers [C], in a shape that spreads over [N, C, ..].
at::Tensor spread(const at::Tensor& values, const at::Tensor& over) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(over.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

/// Waits for a device's numbers, [n] f32.
norm_part read_numbers(const at::Tensor& numbers) {
  const auto here = to_host(numbers);
  const auto* const first = here.const_data_ptr<float>();
  return {first, first + here.numel()};
}

/// The input's own part of the moments.
norm_part own_moments(const at::Tensor& input) {
  const auto [variance, mean] =
      at::var_mean(input.to(at::kFloat), dims_beside_channels(input), /*unbiased=*/false);
  auto part = read_numbers(at::cat({mean, variance}));
  const auto channels = part.size() / 2;
  const double rows = static_cast<double>(input.numel()) / static_cast<double>(channels);
  for (auto c = channels; c < part.size(); ++c) part[c] *= rows;
  part.insert(part.begin(), rows);
  return part;
}

/// What all inputs are normalized by: [mean, 1 / sqrt(variance + eps), variance, variance over
/// rows - 1], on the host.
at::Tensor common_statistics(const norm_part& all, double eps) {  // [4, C] f32
  const double rows = all[0];
  TORCH_CHECK_VALUE(rows > 1, "a batch norm needs more than 1 value per channel in training");
  const auto channels = (all.size() - 1) / 2;
  auto made = at::empty({4, static_cast<std::int64_t>(channels)}, at::kFloat);
  auto* const to = made.mutable_data_ptr<float>();
  for (std::size_t c = 0; c < channels; ++c) {
    const double squares = all[1 + channels + c];
    to[c] = static_cast<float>(all[1 + c]);
    to[channels + c] = static_cast<float>(1 / std::sqrt(squares / rows + eps));
    to[2 * channels + c] = static_cast<float>(squares / rows);
    to[3 * channels + c] = static_cast<float>(squares / (rows - 1));
  }
  return made;
}

/// The sums of all gradients over the rows that there are, on the host.
at::Tensor mean_sums(const norm_part& all, double rows) {  // [2, C] f32
  auto made = at::empty({2, static_cast<std::int64_t>(all.size() / 2)}, at::kFloat);
  auto* const to = made.mutable_data_ptr<float>();
  for (std::size_t i = 0; i < all.size(); ++i) to[i] = static_cast<float>(all[i] / rows);
  return made;
}

struct joint_normalization : torch::autograd::Function<joint_normalization> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const normalization& by) {
    const auto all = by.together->sum(norm_sum::moments, own_moments(input));
    const auto common = from_host(common_statistics(all, by.eps), input.device());  // [4, C] f32
    const auto mean = common.select(0, 0), variance = common.select(0, 2);
    if (by.running_mean.defined()) {
      by.running_mean.lerp_(mean, by.momentum);
      by.running_var.lerp_(common.select(0, 3), by.momentum);
    }
    context->save_for_backward({input, weight, common});
    context->saved_data["rows"] = all[0];
    // As in evaluation: statistics are given, and only read.
    return std::get<0>(at::native_batch_norm(input, weight, bias, mean, variance,
                                             /*training=*/false, /*momentum=*/0, by.eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!c10::GradMode::is_enabled(),
                "the backward of a batch norm over several micro-batches cannot be differentiated "
                "again");
    const auto saved = context->get_saved_variables();
    const auto& input = saved[0];
    const auto& weight = saved[1];
    const auto& common = saved[2];
    const auto& gradient = gradients[0];
    const auto inverse = common.select(0, 1);
    const auto away = at::sub(input, spread(common.select(0, 0), input));  // f32
    const auto dims = dims_beside_channels(input);
    const auto plain = at::sum(gradient, dims, /*keepdim=*/false, at::kFloat);
    const auto centered = at::sum(gradient.mul(away), dims, /*keepdim=*/false, at::kFloat);
    variable_list out(4);
    out[1] = centered.mul(inverse);
    out[2] = plain;
    const auto all =
        norm_sums_of_backward().sum(norm_sum::gradients, read_numbers(at::cat({plain, centered})));
    if (!context->needs_input_grad(0)) return out;
    const auto shares =
        from_host(mean_sums(all, context->saved_data["rows"].toDouble()), input.device());
    // (dy - plain - (x - mean) * centered / deviation^2) * weight / deviation
    const auto slope = shares.select(0, 1).mul(inverse).mul(inverse);
    away.mul_(spread(slope, input)).add_(spread(shares.select(0, 0), input));
    out[0] =
        at::sub(gradient, away).mul_(spread(inverse.mul(weight), input)).to(input.scalar_type());
    return out;
  }
};

}  // namespace

at::Tensor normalize_together(const at::Tensor& input, const normalization& by) {
  const auto type = input.scalar_type();
  TORCH_CHECK_VALUE(
      (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf) && input.dim() >= 2 &&
          input.numel() > 0 && by.weight.defined() && by.bias.defined() &&
          by.weight.scalar_type() == at::kFloat,
      "a batch norm over several micro-batches takes f32, bf16 or fp16 of [N, C, ..], not ",
      input.toString(), " of ", input.sizes());
  return joint_normalization::apply(input, by.weight, by.bias, by);
}

}  // namespace troupe::engine
