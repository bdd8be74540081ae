#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "cluster/training/prepared_run.hpp"
#include "cluster/training/saving/checkpoint_keeper.hpp"
#include "cluster/training/saving/slice_disks.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Where a run begins, or goes on: with versions of the stages, else with a file or with files on
/// hosts' disks, else with the weights of its seed.
struct start_point {
  std::uint64_t steps_before = 0;
  std::optional<engine::loss_scaler> scaler = {};
  std::vector<actors::version_place> versions = {};  // of the stages in turn
  std::optional<checkpoint> file = {};
  std::optional<found_slices> on_hosts = {};
};

/// Where the run begins. `on_hosts`: see settle_beginning.
[[nodiscard]] start_point beginning_of(const prepared_run& run,
                                       std::optional<found_slices> on_hosts);

/// Looks for the files of a checkpoint on the hosts' disks.
using slice_finder = std::function<result<found_slices>(const whole_checkpoint&)>;

/// Where a run goes back to that has no version left of some stage: to the newest checkpoint that
/// it has written and can read, or where there is none to where it began. Says so as a warning.
/// `beginning`: of a run that began from a checkpoint whose files its hosts no longer have nothing
/// is left, and with --resume auto `run` is made to begin anew. Errors: peer_lost, and
/// handler_failed for files that the run began with.
[[nodiscard]] result<start_point> go_back(prepared_run& run, const trainer_config& config,
                                          const checkpoint_keeper& checkpoints,
                                          const start_point& beginning, const slice_finder& find);

/// Gives the stages what they begin with. Errors: bad_data, io_failed, stale, peer_lost.
[[nodiscard]] result<void> load(actors::pipeline& stages, const prepared_run& run,
                                actors::requester& ask, const start_point& from);

}  // namespace troupe::cluster
