#pragma once

#include <cstdint>
#include <functional>

#include "actors/parameter_server/worker_actor.hpp"
#include "cluster/config/program_info.hpp"
#include "engine/data/dataset.hpp"

namespace troupe {

/// What a program has of its own that trains around a parameter server.
struct server_application {
  /// Its name, what can be named, its own options; the table [server] is added.
  cluster::program_info info;
  /// Opens a worker's data and builds its model, of which all workers have the same weights: they
  /// depend on the order's seed alone. An error begins with the setting that is wrong, if one is:
  /// "data.source: ..".
  actors::learner_factory make_learner;
  /// Fewest samples of a share that the learner of such an order can be trained on.
  std::function<std::int64_t(const actors::build_worker&, const engine::dataset&)> least_share;
};

/// As main of an application, but with workers around a parameter server of shard processes.
[[nodiscard]] int main(int argc, const char* const* argv, const server_application& program);

}  // namespace troupe
