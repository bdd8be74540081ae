// resnet_pipeline with the model "small" (small_residual_network.hpp), whose stages compute on
// devices of tests: each of its processes has its own.

#include <functional>

#include "apps/resnet_pipeline/application.hpp"
#include "cluster/training/pipeline/run_trainer.hpp"
#include "cluster/training/program.hpp"
#include "tests/fake_device/fake_device.hpp"
#include "tests/multiprocess/recovery/is_stage.hpp"
#include "tests/small_residual_network.hpp"

namespace {

using namespace troupe;

/// Sets the devices itself, since a config may not name any of these.
result<cluster::run_end> train_on_device(const application& program,
                                         const cluster::trainer_config& config) {
  auto changed = config;
  changed.pipeline.devices = {"fake:0"};
  return cluster::run_trainer(program, changed);
}

}  // namespace

int main(int argc, char** argv) {
  if (tests::is_stage(argc, argv)) tests::fake_device::install();
  auto program = apps::resnet_application();
  program.info.known.models["small"] =
      [](const engine::model_order& order) -> result<engine::model_blueprint> {
    return tests::small_residual_network(order.classes);
  };
  const auto of_program = [&program](auto act) { return std::bind_front(act, std::cref(program)); };
  return cluster::run_program(program.info,
                              {.train = of_program(train_on_device),
                               .serve = of_program(cluster::run_stage_process),
                               .keep = of_program(cluster::run_keeper_process)},
                              argc, argv);
}
