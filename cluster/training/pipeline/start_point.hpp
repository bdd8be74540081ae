#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "actors/pipeline/pipeline.hpp"
#include "cluster/training/prepared_run.hpp"
#include "cluster/training/saving/checkpoint_keeper.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Where a run begins, or goes on: with versions of the stages, else with a file, else with the
/// weights of its seed.
struct start_point {
  std::uint64_t steps_before = 0;
  std::optional<engine::loss_scaler> scaler = {};
  std::vector<actors::version_place> versions = {};  // of the stages in turn
  std::optional<checkpoint> file = {};
};

/// Where the run begins.
[[nodiscard]] start_point beginning_of(const prepared_run& run);

/// Where a run goes back to that has no version left of some stage: to the checkpoint of `step`, or
/// where that is none of its own, or cannot be read, to where it began. Says so as a warning.
[[nodiscard]] start_point go_back(const prepared_run& run, const checkpoint_keeper& checkpoints,
                                  std::uint64_t step);

/// Gives the stages what they begin with. Errors: bad_data, stale, peer_lost.
[[nodiscard]] result<void> load(actors::pipeline& stages, const prepared_run& run,
                                const start_point& from);

}  // namespace troupe::cluster
