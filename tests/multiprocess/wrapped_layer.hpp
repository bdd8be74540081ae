#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/model/layer.hpp"

namespace troupe::tests {

/// A layer with the name and the weights of another one, which it owns, and a forward of its own.
class wrapped_layer : public engine::layer {
 public:
  explicit wrapped_layer(std::unique_ptr<engine::layer> other)
      : layer(other->name()), wrapped_(std::move(other)) {}

  [[nodiscard]] std::vector<engine::named_tensor> parameters() const override {
    return wrapped_->parameters();
  }
  [[nodiscard]] std::vector<engine::named_tensor> buffers() const override {
    return wrapped_->buffers();
  }
  [[nodiscard]] std::vector<engine::weight_tie> ties() const override { return wrapped_->ties(); }
  [[nodiscard]] double macs(std::vector<std::int64_t>& sample_shape) const override {
    return wrapped_->macs(sample_shape);
  }

 protected:
  [[nodiscard]] engine::layer& wrapped() const { return *wrapped_; }

 private:
  std::unique_ptr<engine::layer> wrapped_;
};

}  // namespace troupe::tests
