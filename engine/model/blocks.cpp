#include "engine/model/blocks.hpp"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <array>
#include <cmath>

#include "engine/autograd/pass.hpp"
#include "engine/operators/convolution.hpp"
#include "engine/operators/linear.hpp"

namespace troupe::engine {

namespace {

constexpr double batch_norm_eps = 1e-5;

// torch.nn.init.kaiming_uniform_(weight, a=sqrt(5)), in its order of rounding.
at::Tensor default_weight(at::IntArrayRef shape, const at::Generator& random) {
  const double fan_in = static_cast<double>(c10::multiply_integers(shape.slice(1)));
  const double slope = std::sqrt(5.0);
  const double gain = std::sqrt(2.0 / (1 + slope * slope));
  const double bound = std::sqrt(3.0) * (gain / std::sqrt(fan_in));
  const c10::NoGradGuard no_grad;
  return at::empty(shape, at::kFloat).uniform_(-bound, bound, random).requires_grad_();
}

at::Tensor default_bias(std::int64_t out, std::int64_t fan_in, const at::Generator& random) {
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  const c10::NoGradGuard no_grad;
  return at::empty({out}, at::kFloat).uniform_(-bound, bound, random).requires_grad_();
}

std::int64_t window_output(std::int64_t side, std::int64_t kernel, std::int64_t stride,
                           std::int64_t padding, std::int64_t dilation) {
  return (side + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
}

void expect_image(const layer& of, const std::vector<std::int64_t>& sample_shape) {
  TORCH_CHECK_VALUE(sample_shape.size() == 3, of.name(), " takes samples [C, H, W], not ",
                    at::IntArrayRef(sample_shape));
}

std::array<std::int64_t, 4> weight_shape(const std::string& name, const convolution_options& o) {
  TORCH_CHECK_VALUE(o.groups > 0 && o.in_channels % o.groups == 0 && o.out_channels % o.groups == 0,
                    name, ": ", o.groups, " groups do not divide ", o.in_channels, " -> ",
                    o.out_channels, " channels");
  return {o.out_channels, o.in_channels / o.groups, o.kernel, o.kernel};
}

}  // namespace

convolution::convolution(std::string name, const convolution_options& options,
                         const at::Generator& random)
    : layer(std::move(name)),
      options_(options),
      weight_(default_weight(weight_shape(this->name(), options), random)) {}

at::Tensor convolution::forward(const at::Tensor& input, bool /*training*/) {
  return convolve(input, weight_,
                  {options_.stride, options_.padding, options_.dilation, options_.groups}, copies_);
}

double convolution::macs(std::vector<std::int64_t>& sample_shape) const {
  expect_image(*this, sample_shape);
  const auto& o = options_;
  TORCH_CHECK_VALUE(sample_shape[0] == o.in_channels, name(), " takes ", o.in_channels,
                    " channels, not ", sample_shape[0]);
  sample_shape = {o.out_channels,
                  window_output(sample_shape[1], o.kernel, o.stride, o.padding, o.dilation),
                  window_output(sample_shape[2], o.kernel, o.stride, o.padding, o.dilation)};
  return static_cast<double>(sample_shape[1] * sample_shape[2]) *
         static_cast<double>(weight_.numel());
}

batch_norm::batch_norm(std::string name, std::int64_t channels)
    : layer(std::move(name)),
      weight_(at::ones({channels}, at::kFloat).requires_grad_()),
      bias_(at::zeros({channels}, at::kFloat).requires_grad_()),
      running_mean_(at::zeros({channels}, at::kFloat)),
      running_var_(at::ones({channels}, at::kFloat)),
      batches_(at::zeros({}, at::kLong)) {}

normalization batch_norm::begin(const at::Tensor& input, bool training) {
  normalization by{.weight = weight_,
                   .bias = bias_,
                   .running_mean = running_mean_,
                   .running_var = running_var_,
                   .momentum = running_momentum,
                   .eps = batch_norm_eps,
                   .training = training};
  if (!training) return by;
  by.together = current_norm_sums();
  TORCH_CHECK_VALUE(by.together != nullptr || input.numel() != input.size(1), name(),
                    " needs more than 1 value per channel in training; its input is ",
                    input.sizes());
  const bool is_anothers = by.together && !by.together->counts();
  if (current_pass().again || is_anothers) {  // its statistics are counted elsewhere
    by.running_mean = by.running_var = at::Tensor();
  } else if (auto* const fresh = current_pass().fresh) {
    by.running_mean = at::zeros_like(running_mean_);
    by.running_var = at::zeros_like(running_var_);
    by.momentum = 1;  // the input's own
    fresh->push_back({running_mean_, by.running_mean});
    fresh->push_back({running_var_, by.running_var});
    fresh->push_back({batches_, at::ones_like(batches_)});
  } else {
    batches_.add_(1);
  }
  return by;
}

at::Tensor batch_norm::forward(const at::Tensor& input, bool training) {
  return normalize(input, begin(input, training));
}

at::Tensor batch_norm::forward_relu(const at::Tensor& input, bool training,
                                    const at::Tensor& added) {
  return normalize_relu(input, begin(input, training), added);
}

std::vector<named_tensor> batch_norm::buffers() const {
  return {{name() + ".running_mean", running_mean_},
          {name() + ".running_var", running_var_},
          {name() + ".num_batches_tracked", batches_}};
}

linear::linear(std::string name, std::int64_t in, std::int64_t out, const at::Generator& random)
    : layer(std::move(name)),
      weight_(default_weight({out, in}, random)),
      bias_(default_bias(out, in, random)) {}

at::Tensor linear::forward(const at::Tensor& input, bool /*training*/) {
  return linear_map(input, weight_, bias_, copies_);
}

double linear::macs(std::vector<std::int64_t>& sample_shape) const {
  TORCH_CHECK_VALUE(!sample_shape.empty() && sample_shape.back() == weight_.size(1), name(),
                    " takes samples [..., ", weight_.size(1), "], not ",
                    at::IntArrayRef(sample_shape));
  sample_shape.back() = weight_.size(0);
  return static_cast<double>(c10::multiply_integers(sample_shape)) *
         static_cast<double>(weight_.size(1));
}

at::Tensor relu::forward(const at::Tensor& input, bool /*training*/) {
  if (input.is_leaf()) return at::relu(input);
  at::Tensor output = input;  // same storage
  return at::relu_(output);
}

at::Tensor max_pool::forward(const at::Tensor& input, bool /*training*/) {
  return at::max_pool2d(input, kernel_, stride_, padding_);
}

double max_pool::macs(std::vector<std::int64_t>& sample_shape) const {
  expect_image(*this, sample_shape);
  for (const std::size_t side : {1, 2})
    sample_shape[side] = window_output(sample_shape[side], kernel_, stride_, padding_, 1);
  return 0;
}

at::Tensor adaptive_average_pool::forward(const at::Tensor& input, bool /*training*/) {
  return at::adaptive_avg_pool2d(input, {side_, side_});
}

double adaptive_average_pool::macs(std::vector<std::int64_t>& sample_shape) const {
  expect_image(*this, sample_shape);
  sample_shape = {sample_shape[0], side_, side_};
  return 0;
}

}  // namespace troupe::engine
