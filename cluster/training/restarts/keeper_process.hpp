#pragma once

#include <functional>
#include <memory>

#include "actors/recovery/kept_stages.hpp"
#include "cluster/config/sources/command_line.hpp"
#include "cluster/config/trainer_config.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Serves as a node of a trainer's that keeps versions, until that trainer is gone.
using keeper_of_versions =
    std::function<result<void>(const node_options&, const std::shared_ptr<actors::kept_stages>&)>;

/// Whether a run has a process that keeps its versions while trainers come and go: one that goes on
/// after losses, whose trainer is started again, with stage processes of this machine that lend
/// each other memory, so that another keeper of versions costs no copy (docs/recovery.md).
[[nodiscard]] bool outlives_trainer(const trainer_config& config);

/// What such a process does: joins one trainer after another that invites it through the socket
/// (see invitation), and has for each what it kept for those before. Ends once nobody has the other
/// end of the socket. Returns the exit code.
[[nodiscard]] int keep_versions(const keeper_of_versions& keep, int socket);

}  // namespace troupe::cluster
