#pragma once

#include <map>
#include <string>

#include "actors/futures/requester.hpp"
#include "actors/messages/slices.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Writes the files of a stage's slice if the stage's process does not see the folder: reads the
/// tensors from that process, a few MiB at a time, and computes their checksums here. Waits for
/// answers. Errors: io_failed, peer_lost, stale.
[[nodiscard]] result<std::map<std::string, engine::file_sums>> fetch_slice(
    actors::requester& ask, const actors::write_slice& what, const caf::strong_actor_ptr& keeper);

}  // namespace troupe::cluster
