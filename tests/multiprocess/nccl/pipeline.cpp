// resnet_pipeline with the model "small" (small_residual_network.hpp), whose replicas sum by the
// NCCL of tests, between CPUs: a device's memory is the host's there, and each process has a device
// of its own.

#include <memory>
#include <random>

#include "actors/stage/edges/ucx_maker.hpp"
#include "apps/resnet_pipeline/application.hpp"
#include "engine/collective/nccl/maker.hpp"
#include "tests/fake_nccl/device.hpp"
#include "tests/small_residual_network.hpp"

namespace {

using namespace troupe;

result<std::shared_ptr<engine::nccl::device>> own_device(c10::Device /*on*/) {
  static const tests::fake_nccl::controls library(TROUPE_FAKE_NCCL);
  std::random_device draw;  // process ids are the same on several hosts
  return std::make_shared<tests::fake_nccl::device>(library, static_cast<int>(draw() >> 2));
}

}  // namespace

int main(int argc, char** argv) {
  auto program = apps::resnet_application();
  program.info.known.models["small"] =
      [](const engine::model_order& order) -> result<engine::model_blueprint> {
    return tests::small_residual_network(order.classes);
  };
  program.info.known.libraries.sums = std::make_shared<engine::nccl::maker>(
      engine::nccl::maker_options{.places = {.named = TROUPE_FAKE_NCCL},
                                  .type = c10::DeviceType::CPU,
                                  .device_for = own_device});
  program.info.known.libraries.copies =
      std::make_shared<actors::ucx_maker>(actors::ucx_maker_options{
          .type = c10::DeviceType::CPU, .memory = messages::ucx::memory_kind::host});
  return troupe::main(argc, argv, program);
}
