// parameter_server with one more model: "small" (small_residual_network.hpp), which has little to
// save, to send and to compare.

#include <string>
#include <utility>

#include "apps/parameter_server/application.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "engine/data/class_count.hpp"
#include "engine/data/dataset.hpp"
#include "tests/small_residual_network.hpp"

namespace {

using namespace troupe;

const std::string small = "small";

result<actors::learner> small_learner(const actors::build_worker& order) {
  auto data = engine::open_dataset({.source = order.data,
                                    .image_size = order.image_size,
                                    .seed = order.seed,
                                    .threads = 1,
                                    .strict = order.strict,
                                    .warn = {}});
  if (!data) return tl::unexpected(data.error());
  const auto classes = engine::choose_classes(order.classes, (*data)->classes());
  if (!classes) return tl::unexpected(classes.error());
  auto layers = engine::make_whole(tests::small_residual_network(*classes), order.seed);
  if (!layers) return tl::unexpected(layers.error());
  return actors::learner{std::move(*layers), std::move(*data), {}};
}

}  // namespace

int main(int argc, char** argv) {
  auto program = apps::parameter_server_application();
  program.info.check = [usual = program.info.check](const cluster::draft& whole) -> result<void> {
    if (whole.config.model.name == small) return {};
    return usual(whole);
  };
  program.make_learner =
      [usual = program.make_learner](const actors::build_worker& order) -> result<actors::learner> {
    return order.model == small ? small_learner(order) : usual(order);
  };
  return troupe::main(argc, argv, program);
}
