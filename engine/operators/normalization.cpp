#include "engine/operators/normalization.hpp"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/relu.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "engine/operators/joint_normalization.hpp"
#include "engine/operators/normalization_kernel.hpp"

namespace troupe::engine {
namespace {

namespace kernel = normalization_kernel;
using kernel::tail;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto channels_last = at::MemoryFormat::ChannelsLast;

/// Calls `body(T*)` with a null pointer of the type that `tensor` holds.
template <class Body>
auto with_type(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kFloat) return body(static_cast<float*>(nullptr));
  return body(static_cast<at::BFloat16*>(nullptr));
}

kernel::extent extent_of(const at::Tensor& images) {
  return {images.numel() / images.size(1), images.size(1)};
}

/// Null if the tensor is undefined.
template <class T>
const T* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

void blend(const at::Tensor& running, const kernel::channel_values& fresh, double factor,
           double momentum) {
  float* const kept = running.mutable_data_ptr<float>();
  for (std::size_t c = 0; c < fresh.size(); ++c)
    kept[c] = static_cast<float>(momentum * factor * fresh[c] +
                                 (1 - momentum) * static_cast<double>(kept[c]));
}

struct statistics {
  at::Tensor mean;     // [C] f32
  at::Tensor inverse;  // [C] f32, 1 / sqrt(variance + eps)
  double rows = 0;     // that they are of
};

/// Makes the moments of one input those of all that it is normalized with. Returns their rows.
double join(kernel::moments& own, std::int64_t own_rows, norm_sums& together) {
  const auto channels = own.mean.size();
  norm_part part{static_cast<double>(own_rows)};
  part.insert(part.end(), own.mean.begin(), own.mean.end());
  for (const auto variance : own.variance) part.push_back(variance * static_cast<double>(own_rows));
  const auto all = together.sum(norm_sum::moments, std::move(part));
  const double rows = all[0];
  for (std::size_t c = 0; c < channels; ++c) {
    own.mean[c] = all[1 + c];
    own.variance[c] = all[1 + channels + c] / rows;
  }
  return rows;
}

/// The input's, or those of all; the running ones are updated.
statistics take_statistics(const at::Tensor& input, const normalization& by) {
  const auto over = extent_of(input);
  auto found = with_type(
      input, [&]<class T>(T*) { return kernel::moments_of(best_simd(), data_of<T>(input), over); });
  const double rows =
      by.together ? join(found, over.rows, *by.together) : static_cast<double>(over.rows);
  TORCH_CHECK_VALUE(by.together == nullptr || rows > 1,
                    "a batch norm needs more than 1 value per channel in training");
  const auto like = by.weight.options().requires_grad(false);
  statistics made{at::empty({over.channels}, like), at::empty({over.channels}, like), rows};
  for (std::size_t c = 0; c < found.mean.size(); ++c) {
    made.mean.mutable_data_ptr<float>()[c] = static_cast<float>(found.mean[c]);
    made.inverse.mutable_data_ptr<float>()[c] =
        static_cast<float>(1 / std::sqrt(found.variance[c] + by.eps));
  }
  if (by.running_mean.defined()) {
    blend(by.running_mean, found.mean, 1, by.momentum);
    blend(by.running_var, found.variance, rows / (rows - 1), by.momentum);
  }
  return made;
}

/// What every row's gradient is lessened by, as `input_gradient` takes it.
struct row_gradients {
  std::vector<float> plain;
  std::vector<float> centered;
};

/// Makes the sums of one gradient those of all inputs that were normalized with its input.
void join(kernel::gradient_sums& own) {
  norm_part part = own.plain;
  part.insert(part.end(), own.centered.begin(), own.centered.end());
  const auto all = norm_sums_of_backward().sum(norm_sum::gradients, std::move(part));
  const auto half = all.begin() + static_cast<std::ptrdiff_t>(own.plain.size());
  own.plain.assign(all.begin(), half);
  own.centered.assign(half, all.end());
}

/// Writes the gradients of weight and bias, which are this input's alone.
void write_own(const kernel::gradient_sums& sums, const at::Tensor& inverse,
               const at::Tensor& weight_gradient, const at::Tensor& bias_gradient) {
  for (std::size_t c = 0; c < sums.plain.size(); ++c) {
    weight_gradient.mutable_data_ptr<float>()[c] =
        static_cast<float>(sums.centered[c] * static_cast<double>(data_of<float>(inverse)[c]));
    bias_gradient.mutable_data_ptr<float>()[c] = static_cast<float>(sums.plain[c]);
  }
}

row_gradients share_out(const kernel::gradient_sums& sums, double rows, const at::Tensor& inverse) {
  row_gradients shares;
  for (std::size_t c = 0; c < sums.plain.size(); ++c) {
    const auto by_deviation = static_cast<double>(data_of<float>(inverse)[c]);
    shares.plain.push_back(static_cast<float>(sums.plain[c] / rows));
    shares.centered.push_back(
        static_cast<float>(sums.centered[c] * by_deviation * by_deviation / rows));
  }
  return shares;
}

struct normalization_function : torch::autograd::Function<normalization_function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const std::optional<at::Tensor>& added, const normalization& by,
                            tail after) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [mean, inverse, rows] = take_statistics(input, by);
    const auto scale = inverse.mul(weight);
    const auto output = at::empty_like(input);
    const kernel::line line{data_of<float>(mean), data_of<float>(scale), data_of<float>(bias)};
    with_type(input, [&]<class T>(T*) {
      kernel::forward(best_simd(), after, data_of<T>(input),
                      data_of<T>(added.value_or(at::Tensor())), output.mutable_data_ptr<T>(),
                      extent_of(input), line);
    });
    context->save_for_backward(
        {input, weight, bias, mean, inverse, after == tail::add_relu ? output : at::Tensor()});
    context->saved_data["tail"] = static_cast<std::int64_t>(after);
    context->saved_data["rows"] = rows;
    context->saved_data["together"] = by.together != nullptr;
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!c10::GradMode::is_enabled(),
                "the backward of a fused batch norm cannot be differentiated again");
    const auto saved = context->get_saved_variables();
    const auto& input = saved[0];
    const auto& weight = saved[1];
    const auto& bias = saved[2];
    const auto& mean = saved[3];
    const auto& inverse = saved[4];
    const auto& output = saved[5];
    const auto after = static_cast<tail>(context->saved_data["tail"].toInt());
    const auto over = extent_of(input);
    const auto scale = inverse.mul(weight);
    const kernel::line line{data_of<float>(mean), data_of<float>(scale), data_of<float>(bias)};
    const bool has_added = after == tail::add_relu;

    // What nobody else holds is written where it is.
    const bool is_ours = gradients[0].use_count() == 1 && gradients[0].storage().use_count() == 1;
    auto gradient = gradients[0].resolve_neg().contiguous(channels_last);
    auto free = is_ours || !gradient.is_same(gradients[0]) ? gradient : at::empty_like(input);
    auto sums = with_type(input, [&]<class T>(T*) {
      return kernel::sum_gradients(best_simd(), after, data_of<T>(gradient), data_of<T>(input),
                                   data_of<T>(output),
                                   has_added ? free.mutable_data_ptr<T>() : nullptr, over, line);
    });
    variable_list out(6);
    if (has_added) {
      gradient = out[3] = free;
      free = at::empty_like(input);
    }
    out[1] = at::empty_like(weight);
    out[2] = at::empty_like(bias);
    write_own(sums, inverse, out[1], out[2]);
    if (context->saved_data["together"].toBool()) join(sums);
    const auto rest = share_out(sums, context->saved_data["rows"].toDouble(), inverse);
    if (!context->needs_input_grad(0)) return out;
    out[0] = free;
    with_type(input, [&]<class T>(T*) {
      kernel::input_gradient(best_simd(), after, data_of<T>(gradient), data_of<T>(input),
                             free.mutable_data_ptr<T>(), over, line, rest.plain.data(),
                             rest.centered.data());
    });
    return out;
  }
};

/// Images that also count as contiguous have one pixel or one channel: not worth it.
bool is_channels_last(const at::Tensor& tensor) {
  return tensor.is_contiguous(channels_last) && !tensor.is_contiguous() && !tensor.is_neg();
}

bool has_kernel(const at::Tensor& input, const normalization& by, const at::Tensor& added) {
  const auto type = input.scalar_type();
  if (!by.training || !input.is_cpu() || (type != at::kFloat && type != at::kBFloat16) ||
      input.dim() != 4 || input.numel() == 0 || !is_channels_last(input) || !by.weight.defined() ||
      !by.bias.defined())
    return false;
  if (added.defined() && (!added.is_cpu() || added.scalar_type() != type ||
                          added.sizes() != input.sizes() || !is_channels_last(added)))
    return false;
  for (const auto& each : {by.weight, by.bias, by.running_mean, by.running_var})
    if (each.defined() && (!each.is_cpu() || each.scalar_type() != at::kFloat ||
                           each.numel() != input.size(1) || !each.is_contiguous() || each.is_neg()))
      return false;
  return true;
}

/// As rows of channels side by side: [N, C, ..] -> [N, C, H, W] in channels_last.
at::Tensor as_rows(const at::Tensor& x) {
  const auto images = x.dim() == 4 ? x : x.reshape({x.size(0), x.size(1), -1, 1});
  return images.resolve_neg().contiguous(channels_last);
}

at::Tensor run_together(const at::Tensor& input, const normalization& by, const at::Tensor& added,
                        tail after) {
  const auto type = input.scalar_type();
  TORCH_CHECK_VALUE((type == at::kFloat || type == at::kBFloat16) && input.dim() >= 2 &&
                        input.numel() > 0 && by.weight.defined() && by.bias.defined() &&
                        by.weight.scalar_type() == at::kFloat,
                    "a batch norm over several micro-batches takes f32 or bf16 of [N, C, ..] on a "
                    "CPU, not ",
                    input.toString(), " of ", input.sizes());
  std::optional<at::Tensor> also;
  if (added.defined()) also = as_rows(added.to(type));
  const auto output =
      normalization_function::apply(as_rows(input), by.weight, by.bias, also, by, after);
  return output.reshape(input.sizes()).contiguous(input.suggest_memory_format());
}

at::Tensor run(const at::Tensor& input, const normalization& by, const at::Tensor& added,
               tail after) {
  const bool joins = by.training && by.together;
  if (joins && input.is_cpu()) return run_together(input, by, added, after);
  if (has_kernel(input, by, added))
    return normalization_function::apply(input, by.weight, by.bias,
                                         added.defined() ? std::optional(added) : std::nullopt, by,
                                         after);
  auto output = joins ? normalize_together(input, by)
                      : at::batch_norm(input, by.weight, by.bias, by.running_mean, by.running_var,
                                       by.training, by.momentum, by.eps, /*cudnn_enabled=*/true);
  if (after == tail::none) return output;
  if (added.defined()) output += added;
  return at::relu_(output);
}

}  // namespace

at::Tensor normalize(const at::Tensor& input, const normalization& by) {
  return run(input, by, {}, tail::none);
}

at::Tensor normalize_relu(const at::Tensor& input, const normalization& by,
                          const at::Tensor& added) {
  return run(input, by, added, added.defined() ? tail::add_relu : tail::relu);
}

}  // namespace troupe::engine
