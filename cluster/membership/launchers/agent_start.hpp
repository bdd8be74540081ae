#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/launch/agents/stream_seal.hpp"
#include "cluster/launch/child_process.hpp"
#include "cluster/membership/launchers/agent_launcher.hpp"
#include "messages/base/error.hpp"

/// How the agents of a launch come to run on their hosts.
namespace troupe::cluster {

/// The program that starts agents on other hosts: "ssh".
[[nodiscard]] std::string carrier_name(launch_way way);

/// The path of the run's program on a host.
[[nodiscard]] std::string program_on(const agent_host& host);

/// The process that is a host's agent, or starts it there. Errors: io_failed where what is to start
/// it is not installed.
[[nodiscard]] result<child_spec> agent_child(const agent_settings& settings,
                                             const agent_host& host);

/// What proves and seals the stream of a host's agent; null where ssh does, or this machine's
/// kernel. Errors: those of munge.
[[nodiscard]] result<std::unique_ptr<stream_seal>> agent_seal(const agent_settings& settings,
                                                              const agent_host& host);

/// Has the hosts listen in the network that choose_network finds, once the addresses of all are
/// known, if none of them names an address or network. What to tell the user of it; empty: nothing
/// is changed, and a host that names none listens where it reaches the trainer. May block.
[[nodiscard]] std::string choose_listening(const std::vector<agent_host*>& hosts,
                                           const agent_settings& settings);

/// Copies this program to the hosts that are to have it, and notes where it is there. Errors: those
/// of push_files.
[[nodiscard]] result<void> push_program(agent_settings& settings);

}  // namespace troupe::cluster
