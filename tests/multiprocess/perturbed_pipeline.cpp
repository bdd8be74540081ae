// resnet_pipeline whose stage processes, unlike its trainer, have a wrong layer: --verify must see.
// Where TROUPE_STOPS_AT_END is set they stop, as by SIGSTOP, when all of their work is done.

#include <ATen/TensorOperators.h>
#include <signal.h>

#include <cstdlib>
#include <memory>

#include "apps/resnet_pipeline/application.hpp"
#include "tests/multiprocess/recovery/is_stage.hpp"
#include "tests/multiprocess/wrapped_layer.hpp"

namespace {

using namespace troupe;

/// A layer with a small mistake: what it gives is a little too large.
class mistaken final : public tests::wrapped_layer {
 public:
  using wrapped_layer::wrapped_layer;

  at::Tensor forward(const at::Tensor& input, bool training) override {
    return wrapped().forward(input, training) * 1.0001;
  }
};

}  // namespace

int main(int argc, char** argv) {
  auto program = apps::resnet_application();
  const bool is_stage = tests::is_stage(argc, argv);
  if (is_stage) {
    const auto right = program.info.known.models.at("resnet18");
    program.info.known.models["resnet18"] = [right](const engine::model_order& order) {
      auto made = right(order);
      if (made)
        made->layers.back() = [last = made->layers.back()](const at::Generator& random) {
          return std::make_unique<mistaken>(last(random));
        };
      return made;
    };
  }
  const int code = troupe::main(argc, argv, program);
  if (is_stage && std::getenv("TROUPE_STOPS_AT_END") != nullptr) ::raise(SIGSTOP);
  return code;
}
