#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/training/prepared_run.hpp"
#include "cluster/training/saving/beginning.hpp"
#include "cluster/training/saving/slice_disks.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The disks on which the run's checkpoints are to be kept, where they are the hosts' own. Warns
/// where all hosts have one folder, and where a disk has too little room. `weight_bytes`: of the
/// stages that write them, those of the first replica. Errors: those of open_disks.
[[nodiscard]] result<std::optional<slice_disks>> open_disks_of(
    const disk_access& by, const std::vector<std::uint64_t>& weight_bytes);

/// The same, where processes have been replaced. A host whose folder cannot be opened is warned of,
/// and checkpoints fail while it is so. Errors: peer_lost.
[[nodiscard]] result<void> open_again(std::optional<slice_disks>& disks, const disk_access& by);
/// The same for a checkpoint that is due, where a host had no folder: it may have one now.
[[nodiscard]] result<void> open_missing(std::optional<slice_disks>& disks, const disk_access& by);

/// Asks the hosts for the files of a checkpoint, each in its own folder for checkpoints or under
/// the path that the checkpoint has here. Errors: those of open_disks and find_slices.
[[nodiscard]] result<found_slices> find_on_hosts(const disk_access& by, const whole_checkpoint& of);

/// Finds the files of the checkpoint that the run resumes from on its hosts' disks. With --resume
/// auto a checkpoint whose files are gone is passed over with a warning, for an older one or the
/// beginning. If the trainer has lost its folder, the manifests are read from the hosts; the run
/// may turn out to be complete then. Nothing: the run does not start from slices on hosts' disks.
/// Errors: bad_data, peer_lost.
[[nodiscard]] result<std::optional<found_slices>> find_beginning_on_hosts(prepared_run& run,
                                                                          const disk_access& by);

/// The same, once the run is prepared to begin from a checkpoint of any kind. `unread`: why the
/// stages cannot read that one, which is passed over then where --resume auto does so, and else
/// refused, with an older one offered. Nothing: the run does not start from slices on hosts' disks.
/// Errors: bad_data, peer_lost.
[[nodiscard]] result<std::optional<found_slices>> search_beginning(prepared_run& run,
                                                                   const disk_access& by,
                                                                   std::optional<error> unread);

/// Gives the stages what such a checkpoint holds: hosts copy from each other what their stages need
/// and they lack, and the stages read it there. Errors: bad_data where a file is not whole any
/// more, or cannot be read; bad_config where it does not fit the model; io_failed, peer_lost.
[[nodiscard]] result<void> load_slices(actors::pipeline& stages, const prepared_run& run,
                                       actors::requester& ask, found_slices from);

}  // namespace troupe::cluster
