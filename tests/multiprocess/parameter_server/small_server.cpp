// parameter_server with one more model: "small" (small_residual_network.hpp), which has little to
// save, to send and to compare.

#include <cstdint>
#include <string>

#include "apps/parameter_server/application.hpp"
#include "apps/parameter_server/learners.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "tests/small_residual_network.hpp"

namespace {

using namespace troupe;

const std::string small = "small";

}  // namespace

int main(int argc, char** argv) {
  auto program = apps::parameter_server_application();
  program.info.check = [usual = program.info.check](const cluster::draft& whole) -> result<void> {
    if (whole.config.model.name == small) return {};
    return usual(whole);
  };
  program.make_learner =
      [usual = program.make_learner](const actors::build_worker& order) -> result<actors::learner> {
    if (order.model != small) return usual(order);
    return apps::image_learner(order, [&order](std::int64_t classes) {
      return engine::make_whole(tests::small_residual_network(classes), order.seed);
    });
  };
  return troupe::main(argc, argv, program);
}
