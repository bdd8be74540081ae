#pragma once

#include <map>
#include <string>
#include <vector>

#include "cluster/hosts/cluster_config.hpp"
#include "cluster/launch/agents/session_core.hpp"
#include "cluster/launch/push/push_core.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// This program's file and the libraries that it has loaded which a host is to have: those in its
/// own folder or in `lib` beside that, or all that are outside of the system's folders. Reads all
/// of them. Errors: io_failed.
[[nodiscard]] result<std::vector<pushed_file>> files_to_push(push_extent which);

/// Copies the files over ssh to hosts that lack them, all hosts at once, and returns where they are
/// by host. What a launch that was cut off has sent is gone on with. Blocks. Errors: of the first
/// place that failed, naming node and host and saying what to do.
[[nodiscard]] result<std::map<std::string, pushed_place>> push_files(
    const std::vector<pushed_file>& files, const std::vector<agent_place>& places,
    const std::vector<std::string>& ssh_options);

}  // namespace troupe::cluster
