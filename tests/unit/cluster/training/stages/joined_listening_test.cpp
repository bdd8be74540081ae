#include "cluster/training/stages/joined_listening.hpp"

#include <caf/actor_cast.hpp>
#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <string>
#include <utility>

#include "actors/pipeline/host_actor.hpp"
#include "cluster/config/trainer_config.hpp"
#include "cluster/membership/node_group.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/cluster/membership/watched_threads.hpp"

namespace {

using namespace troupe;

/// A host that others have started, and that may listen elsewhere.
cluster::host_spawner moving_host(actors::host_parts::move_door listen) {
  return [listen = std::move(listen)](caf::actor_system& system, const cluster::joined_node&,
                                      cluster::shut_down_handler on_shut_down) {
    return caf::actor_cast<caf::strong_actor_ptr>(
        actors::spawn_host(system, {.models = {},
                                    .optimizers = {},
                                    .on_shut_down = std::move(on_shut_down),
                                    .interfaces = {"10.1.2.3/24"},
                                    .listen = listen}));
  };
}

}  // namespace

TEST_CASE("A stage that has no descriptor to listen elsewhere with is named") {
  const auto nodes = std::make_shared<tests::watched_threads>();
  nodes->spawn = moving_host([](const std::string&) -> result<std::string> {
    return fail(errc::io_failed, "cannot open a socket: Too many open files");
  });
  const auto group = cluster::node_group::start(nodes, {"stage-0"}, "");
  REQUIRE(group);
  cluster::trainer_config config;
  config.cluster.launch = cluster::launch_way::none;
  config.cluster.network = "10.0.0.0/8";
  cluster::joined_listening doors(**group, config.cluster);
  const auto settled = error_of(doors.arrange());
  CHECK(settled.code == errc::io_failed);
  CHECK(settled.text == "stage-0: 10.0.0.0/8: cannot open a socket: Too many open files");
}
