// resnet_pipeline with two models more. "small": little to save, to send and to compare. "uneven":
// the same, of which a trainer measures the last layer as slow; where TROUPE_UNEVEN names a file
// that is there, it is the first, and stages take a while to be built.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "apps/resnet_pipeline/application.hpp"
#include "engine/model/layer.hpp"
#include "tests/small_residual_network.hpp"

namespace {

using namespace troupe;

/// What it computes is right.
class slow final : public engine::layer {
 public:
  explicit slow(std::unique_ptr<engine::layer> right)
      : layer(right->name()), right_(std::move(right)) {}

  at::Tensor forward(const at::Tensor& input, bool training) override {
    if (!input.is_meta()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return right_->forward(input, training);
  }
  [[nodiscard]] std::vector<engine::named_tensor> parameters() const override {
    return right_->parameters();
  }
  [[nodiscard]] std::vector<engine::named_tensor> buffers() const override {
    return right_->buffers();
  }
  [[nodiscard]] double macs(std::vector<std::int64_t>& shape) const override {
    return right_->macs(shape);
  }

 private:
  std::unique_ptr<engine::layer> right_;
};

bool is_first_slow() {
  const char* const file = std::getenv("TROUPE_UNEVEN");
  return file != nullptr && std::filesystem::exists(file);
}

engine::model_blueprint uneven_network(std::int64_t classes, bool is_stage) {
  auto made = tests::small_residual_network(classes);
  const bool first = is_first_slow();
  auto& uneven = first ? made.layers.front() : made.layers.back();
  uneven = [right = uneven, first,
            is_stage](const at::Generator& random) -> std::unique_ptr<engine::layer> {
    if (!is_stage) return std::make_unique<slow>(right(random));
    if (first) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return right(random);
  };
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  auto program = apps::resnet_application();
  const auto words = std::span(argv, static_cast<std::size_t>(argc));
  const bool is_stage =
      std::ranges::any_of(words, [](const char* word) { return std::strcmp(word, "--join") == 0; });
  auto& models = program.info.known.models;
  models["small"] = [](const engine::model_order& order) -> result<engine::model_blueprint> {
    return tests::small_residual_network(order.classes);
  };
  models["uneven"] =
      [is_stage](const engine::model_order& order) -> result<engine::model_blueprint> {
    return uneven_network(order.classes, is_stage);
  };
  return troupe::main(argc, argv, program);
}
