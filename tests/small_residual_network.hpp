#pragma once

#include <ATen/ops/flatten.h>

#include <cstdint>
#include <vector>

#include "apps/resnet_pipeline/resnet.hpp"
#include "engine/blueprint/model_blueprint.hpp"
#include "engine/model/blocks.hpp"

namespace troupe::tests {

/// [n, ...] -> [n, m]
class rows final : public engine::layer {
 public:
  using layer::layer;
  at::Tensor forward(const at::Tensor& input, bool /*training*/) override {
    return at::flatten(input, 1);
  }
  [[nodiscard]] double macs(std::vector<std::int64_t>& sample) const override {
    std::int64_t numbers = 1;
    for (const auto each : sample) numbers *= each;
    sample = {numbers};
    return 0;
  }
};

/// A ResNet-18 without its last four blocks, which have 94% of its 11 million weights and no kind
/// of layer that the others lack: eleven layers over images [n, 3, H, W].
inline engine::model_blueprint small_residual_network(std::int64_t classes) {
  auto made = apps::resnet_blueprint("resnet18", classes).value();
  const auto at_layer3 = made.layers.begin() + 8;
  made.layers.erase(at_layer3, at_layer3 + 4);
  made.layers.pop_back();
  made.add<rows>("rows");
  made.add<engine::linear>("fc", std::int64_t{128}, classes);
  return made;
}

}  // namespace troupe::tests
