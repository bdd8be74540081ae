#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/recovery/kept_stages.hpp"
#include "cluster/config/config_tables.hpp"
#include "cluster/config/sources/command_line.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Serves as a node of a trainer's that keeps versions, until that trainer is gone.
using keeper_of_versions =
    std::function<result<void>(const node_options&, const std::shared_ptr<actors::kept_stages>&)>;

/// Whether a run has a process that keeps the versions of all its stages while trainers come and
/// go: one of stage processes that goes on after losses, and whose trainer is started again
/// (docs/recovery.md).
[[nodiscard]] bool outlives_trainer(const train_config& train, const pipeline_config& pipeline);

/// What such a process does: joins one trainer after another that invites it through the socket
/// (see invitation), and has for each what it kept for those before. Why it could not join one, it
/// tells that trainer there. Ends once nobody has the other end of the socket. `listen`: as of
/// node_options, where stages on other machines are to reach it if the trainer listens at all
/// addresses of its host; else they reach it where they reach that. Returns the exit code.
[[nodiscard]] int keep_versions(const keeper_of_versions& keep, int socket,
                                const std::string& listen);

}  // namespace troupe::cluster
