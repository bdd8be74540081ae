#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/hosts/cluster_config.hpp"
#include "cluster/hosts/placement_core.hpp"
#include "cluster/launch/process_group.hpp"
#include "cluster/membership/node_launcher.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// A host with an agent, and the processes that it is to run.
struct agent_host {
  std::string name;               ///< "beta": unique.
  std::string host;               ///< What ssh or srun is told; empty: this machine, without them.
  std::string listen;             ///< Where its processes listen: see node_options::listen.
  std::filesystem::path program;  ///< There; empty: the path of our own.
  std::string library_path =
      {};  ///< LD_LIBRARY_PATH of the agent and its processes; empty: theirs.
  std::filesystem::path working_folder;
  std::map<std::string, std::string> environment;
  thread_load threads = {};                 ///< Of its processes, for which it should have cores.
  std::vector<std::string> processes;       ///< Names of the nodes that run there: "stage-1".
  std::vector<std::string> addresses = {};  ///< Of its interfaces, as its agent says them.
};

/// For processes that are no nodes of a run: what they are told, and who is told about them. Where
/// `arguments` is set all are. Called on the launcher's threads and under its lock: they must not
/// call it.
struct process_watch {
  /// The arguments of a process that is started with this order (see node_launcher::start).
  std::function<std::vector<std::string>(const std::string& order)> arguments = {};
  /// A process wrote a line; it is not shown.
  std::function<void(const std::string& process, output_stream, const std::string& text)> on_line =
      {};
  /// A process has ended, which is no failure of the launch.
  std::function<void(const child_exit&)> on_end = {};
  /// Something is harmless, and yet to be changed: "node beta (10.0.0.2): WHAT; WHAT TO DO".
  std::function<void(const std::string& text)> on_warning = {};
  /// The agent is lost, and its processes with it.
  std::function<void(const error&)> on_lost = {};
};

struct agent_settings {
  std::vector<agent_host> hosts;
  launch_way carrier = launch_way::ssh;      ///< What starts agents on other hosts.
  std::vector<std::string> carrier_options;  ///< Words that it gets.
  bool munge = false;  ///< Both ends of a scheduler's stream prove with munge whose they are.
  std::chrono::milliseconds silence{10'000};   ///< After which an agent, or we, count as lost.
  std::chrono::milliseconds patience{15'000};  ///< For an agent to answer at first.
  bool verbose = false;
  process_watch watch = {};
  std::filesystem::path logs = {};  ///< Folder for a file of each node's lines; empty: none.
  push_extent push = push_extent::nothing;  ///< To hosts that name no program of their own.
  std::string trainer = {};  ///< Where it listens, "HOST:PORT"; empty: for this machine alone.
};

/// An agent on each host, each a process of this program that starts the host's node processes and
/// ends them with its stream: a child of ours, or what ssh, srun or mpirun runs there. The secret
/// goes to them over that stream alone, which is sealed where a scheduler carries it. Returns when
/// all agents have answered; where one does not, all are ended. Before, it copies the program where
/// it is to. Errors: address_unavailable,
/// bad_config and io_failed, naming node and host and saying what to do.
[[nodiscard]] result<std::unique_ptr<node_launcher>> make_agent_launcher(process_link link,
                                                                         agent_settings settings);

}  // namespace troupe::cluster
