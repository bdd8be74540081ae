#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/named_tensor.hpp"

namespace troupe::engine {

/// Two parameters that are one weight, each given by its full name: they start equal, each gets the
/// sum of both gradients, and so they stay equal. They have one shape, and are in no other tie.
struct weight_tie {
  std::string one;
  std::string other;

  bool operator==(const weight_tie&) const = default;
};

/// One entry of a model's list of layers; a model may be cut into stages between two layers. Owns
/// its parameters and buffers; used by one thread at a time. Errors are torch's exceptions.
class layer {
 public:
  explicit layer(std::string name) : name_(std::move(name)) {}
  layer(const layer&) = delete;
  layer& operator=(const layer&) = delete;
  virtual ~layer() = default;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  /// Runs one micro-batch through the layer, recorded by autograd if grad mode is on. `training`
  /// chooses between the micro-batch's own statistics and the running ones. Must never write to a
  /// leaf: a stage's input is often another stage's output.
  virtual at::Tensor forward(const at::Tensor& input, bool training) = 0;

  /// Leaves that require a gradient, in a fixed order. The handles are the layer's own tensors:
  /// values that are written into them, or set with `set_data`, are what the layer uses next.
  [[nodiscard]] virtual std::vector<named_tensor> parameters() const { return {}; }

  /// Tensors that are saved beside the parameters but have no gradient (running statistics).
  /// Handles as above.
  [[nodiscard]] virtual std::vector<named_tensor> buffers() const { return {}; }

  /// Which of its parameters are tied to a parameter of an earlier layer.
  [[nodiscard]] virtual std::vector<weight_tie> ties() const { return {}; }

  /// Multiply-accumulates of one forward over one sample whose input has `sample_shape` (without
  /// the batch dimension); replaces `sample_shape` with the output's shape.
  [[nodiscard]] virtual double macs(std::vector<std::int64_t>& sample_shape) const = 0;

 private:
  std::string name_;
};

/// A model is its layers in order; the output of one is the input of the next.
using model = std::vector<std::unique_ptr<layer>>;

}  // namespace troupe::engine
