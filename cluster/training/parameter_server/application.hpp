#pragma once

#include <cstdint>
#include <functional>

#include "actors/parameter_server/worker_actor.hpp"
#include "cluster/config/program_info.hpp"
#include "engine/data/dataset.hpp"

namespace troupe {

/// What is specific to one program that trains with a parameter server.
struct server_application {
  /// Its name, everything that can be named, and its own options; the table [server] is added.
  cluster::program_info info;
  /// Opens a worker's data and builds its model. The weights depend on the order's seed alone, so
  /// all workers start with the same ones. If a setting is wrong, the error begins with its name:
  /// "data.source: ..".
  actors::learner_factory make_learner;
  /// Minimum number of samples in a worker's share that the learner of this order can be trained
  /// on.
  std::function<std::int64_t(const actors::build_worker&, const engine::dataset&)> least_share;
};

/// As `main` of an application, but trains with workers and a parameter server of shard processes.
[[nodiscard]] int main(int argc, const char* const* argv, const server_application& program);

}  // namespace troupe
