#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/layer.hpp"

namespace troupe::apps {

/// A table of vectors for each field; a sample is one row of each, side by side. Only the rows that
/// a batch names get gradients, which are sparse. [N, fields] i64 -> [N, fields * width]
class embeddings final : public engine::layer {
 public:
  /// Rows are drawn from a normal distribution of a small deviation.
  embeddings(std::string name, std::int64_t fields, std::int64_t rows, std::int64_t width,
             const at::Generator& random);

  at::Tensor forward(const at::Tensor& input, bool training) override;
  [[nodiscard]] std::vector<engine::named_tensor> parameters() const override;
  [[nodiscard]] double macs(std::vector<std::int64_t>& sample_shape) const override;

 private:
  std::vector<at::Tensor> tables_;  // [rows, width] f32 each
};

}  // namespace troupe::apps
