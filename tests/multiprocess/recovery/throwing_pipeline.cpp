// resnet_pipeline with small models of which one layer, in a stage's process, throws in a forward
// where TROUPE_THROWN names a file: "throws_once", "throws_always". That is the ninth forward in
// training that it comes to, and again that of the same input in whatever process; the file has its
// sum.

#include <ATen/core/Tensor.h>

#include <cstdlib>
#include <fstream>
#include <ios>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "apps/resnet_pipeline/application.hpp"
#include "engine/model/layer.hpp"
#include "tests/multiprocess/recovery/is_stage.hpp"
#include "tests/multiprocess/wrapped_layer.hpp"
#include "tests/small_residual_network.hpp"

namespace {

using namespace troupe;

constexpr int good_forwards = 8;

class throwing final : public tests::wrapped_layer {
 public:
  throwing(std::unique_ptr<engine::layer> right, bool always)
      : wrapped_layer(std::move(right)), always_(always) {}

  at::Tensor forward(const at::Tensor& input, bool training) override {
    if (training && !input.is_meta() && throws_at(input))
      throw std::runtime_error("it was told to throw");
    return wrapped().forward(input, training);
  }

 private:
  bool throws_at(const at::Tensor& input) {
    const char* const file = std::getenv("TROUPE_THROWN");
    if (file == nullptr) return false;
    const auto sum = input.detach().sum().item<double>();
    double thrown = 0;
    if (std::ifstream in(file, std::ios::binary);
        in.read(reinterpret_cast<char*>(&thrown), sizeof(thrown)))
      return always_ && thrown == sum;
    if (++forwards_ <= good_forwards) return false;
    std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(&sum), sizeof(sum));
    return true;
  }

  bool always_;
  int forwards_ = 0;
};

void add(application& program, const std::string& name, bool is_stage, bool always) {
  program.info.known.models[name] =
      [is_stage, always](const engine::model_order& order) -> result<engine::model_blueprint> {
    auto made = tests::small_residual_network(order.classes);
    if (is_stage) {
      auto& last_block = made.layers.at(7);
      last_block = [block = last_block, always](const at::Generator& random) {
        return std::make_unique<throwing>(block(random), always);
      };
    }
    return made;
  };
}

}  // namespace

int main(int argc, char** argv) {
  auto program = apps::resnet_application();
  const bool is_stage = tests::is_stage(argc, argv);
  add(program, "throws_once", is_stage, false);
  add(program, "throws_always", is_stage, true);
  return troupe::main(argc, argv, program);
}
