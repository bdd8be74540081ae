#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/layer.hpp"
#include "engine/operators/normalization.hpp"
#include "engine/operators/weight_copies.hpp"

namespace troupe::engine {

// Building blocks of convolutional networks. Each calls the same operators as PyTorch's module of
// the same purpose, so outputs and gradients are bitwise equal to PyTorch's, except for batch norm
// where it has kernels of its own (see normalize): that is equal within rounding. Each draws its
// weights as that module's constructor does. Parameters start in float32 on the CPU.

/// Square windows only.
struct convolution_options {
  std::int64_t in_channels = 0;
  std::int64_t out_channels = 0;
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
};

/// torch.nn.Conv2d without bias. [N, C, H, W] -> [N, C', H', W']
class convolution final : public layer {
 public:
  convolution(std::string name, const convolution_options& options, const at::Generator& random);

  at::Tensor forward(const at::Tensor& input, bool training) override;
  [[nodiscard]] std::vector<named_tensor> parameters() const override {
    return {{name() + ".weight", weight_}};
  }
  [[nodiscard]] double macs(std::vector<std::int64_t>& sample_shape) const override;

 private:
  convolution_options options_;
  at::Tensor weight_;  // [out, in / groups, kernel, kernel] f32
  std::shared_ptr<weight_copies> copies_ = std::make_shared<weight_copies>();
};

/// torch.nn.BatchNorm2d: momentum 0.1, eps 1e-5. Normalizes with the statistics of the micro-batch
/// that it is given, and updates the running ones with them. On a thread that has `norm_sums` with
/// those of several micro-batches (torch.nn.SyncBatchNorm). [N, C, H, W], shape kept
class batch_norm final : public layer {
 public:
  batch_norm(std::string name, std::int64_t channels);

  /// In training, one value per channel has no variance: an error, as in PyTorch.
  at::Tensor forward(const at::Tensor& input, bool training) override;

  /// The same followed by a ReLU, before which `added` is added if it is defined.
  [[nodiscard]] at::Tensor forward_relu(const at::Tensor& input, bool training,
                                        const at::Tensor& added = {});

  [[nodiscard]] std::vector<named_tensor> parameters() const override {
    return {{name() + ".weight", weight_}, {name() + ".bias", bias_}};
  }
  [[nodiscard]] std::vector<named_tensor> buffers() const override;
  [[nodiscard]] double macs(std::vector<std::int64_t>&) const override { return 0; }

 private:
  // Counts the batch, unless it was counted before.
  normalization begin(const at::Tensor& input, bool training);

  at::Tensor weight_;        // [C] f32
  at::Tensor bias_;          // [C] f32
  at::Tensor running_mean_;  // [C] f32
  at::Tensor running_var_;   // [C] f32
  at::Tensor batches_;       // [] i64, micro-batches seen in training
};

/// torch.nn.Linear. [..., in] -> [..., out]
class linear final : public layer {
 public:
  linear(std::string name, std::int64_t in, std::int64_t out, const at::Generator& random);

  at::Tensor forward(const at::Tensor& input, bool training) override;
  [[nodiscard]] std::vector<named_tensor> parameters() const override {
    return {{name() + ".weight", weight_}, {name() + ".bias", bias_}};
  }
  [[nodiscard]] double macs(std::vector<std::int64_t>& sample_shape) const override;

 private:
  at::Tensor weight_;  // [out, in] f32
  std::shared_ptr<weight_copies> copies_ = std::make_shared<weight_copies>();
  at::Tensor bias_;  // [out] f32
};

/// torch.nn.ReLU(inplace=True): overwrites its input, unless that is a leaf. Shape kept
class relu final : public layer {
 public:
  using layer::layer;

  at::Tensor forward(const at::Tensor& input, bool training) override;
  [[nodiscard]] double macs(std::vector<std::int64_t>&) const override { return 0; }
};

/// torch.nn.MaxPool2d. [N, C, H, W] -> [N, C, H', W']
class max_pool final : public layer {
 public:
  max_pool(std::string name, std::int64_t kernel, std::int64_t stride, std::int64_t padding)
      : layer(std::move(name)), kernel_(kernel), stride_(stride), padding_(padding) {}

  at::Tensor forward(const at::Tensor& input, bool training) override;
  [[nodiscard]] double macs(std::vector<std::int64_t>& sample_shape) const override;

 private:
  std::int64_t kernel_;
  std::int64_t stride_;
  std::int64_t padding_;
};

/// torch.nn.AdaptiveAvgPool2d. [N, C, H, W] -> [N, C, side, side]
class adaptive_average_pool final : public layer {
 public:
  adaptive_average_pool(std::string name, std::int64_t side)
      : layer(std::move(name)), side_(side) {}

  at::Tensor forward(const at::Tensor& input, bool training) override;
  [[nodiscard]] double macs(std::vector<std::int64_t>& sample_shape) const override;

 private:
  std::int64_t side_;
};

}  // namespace troupe::engine
