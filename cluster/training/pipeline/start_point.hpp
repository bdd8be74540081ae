#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "cluster/recovery/return_core.hpp"
#include "cluster/training/prepared_run.hpp"
#include "cluster/training/saving/beginning.hpp"
#include "cluster/training/saving/checkpoint_keeper.hpp"
#include "cluster/training/saving/slice_disks.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Where a run starts or continues: from versions that keepers have of the stages, else from a file
/// or files on hosts' disks, else from weights drawn with its seed.
struct start_point {
  std::uint64_t steps_before = 0;
  std::optional<engine::loss_scaler> scaler = {};
  std::vector<actors::version_place> versions = {};  // of the stages in turn
  std::optional<checkpoint> file = {};
  std::optional<found_slices> on_hosts = {};
  bool is_own = false;  // a checkpoint that the run itself has written
};

/// Where the run begins. `on_hosts`: see find_beginning_on_hosts.
[[nodiscard]] start_point beginning_of(const prepared_run& run,
                                       std::optional<found_slices> on_hosts);

/// Warns that a checkpoint of the run itself is passed over.
void warn_of_unread(std::uint64_t step, const error& why);

/// What a run reads when no version of some stage is left, in the order that return_core gives: its
/// own checkpoints, then what it started from. Warns of what it passes over, and of where the run
/// goes back to. Used by one thread.
class way_back {
 public:
  /// All outlive it. If the checkpoint that the run started from (`beginning`) is gone from its
  /// hosts, nothing is left to go back to; with --resume auto `run` then goes on from an older one,
  /// or starts from the beginning.
  way_back(prepared_run& run, const checkpoint_keeper& checkpoints, const start_point& beginning,
           const disk_access& by)
      : run_(run), checkpoints_(checkpoints), beginning_(beginning), by_(by) {}

  [[nodiscard]] static bool may_begin_anew(const checkpoint_config& kept) {
    return kept.resume == "auto";
  }

  /// Whether it can be read. Errors: peer_lost.
  [[nodiscard]] result<bool> read_checkpoint(std::uint64_t step);
  [[nodiscard]] result<bool> read_beginning();
  /// What was wrong with the beginning.
  [[nodiscard]] const std::string& why_no_beginning() const { return why_; }

  /// What was read last; of source::anew, what the run begins with instead of its beginning.
  /// Errors: those of search_beginning.
  [[nodiscard]] result<start_point> take(return_core::source from);

 private:
  prepared_run& run_;
  const checkpoint_keeper& checkpoints_;
  const start_point& beginning_;
  const disk_access& by_;
  start_point read_;
  std::string why_;
};

/// Whether `load` has failed by this since the files of a checkpoint are not what they were when
/// they were checked, or cannot be read any more.
[[nodiscard]] bool is_of_checkpoint(const start_point& from, const error& why);

/// Gives the stages what they begin with. Errors: bad_config for what does not fit the model;
/// bad_data, io_failed, stale, peer_lost.
[[nodiscard]] result<void> load(actors::pipeline& stages, const prepared_run& run,
                                actors::requester& ask, const start_point& from);

}  // namespace troupe::cluster
