#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/hosts/cluster_config.hpp"
#include "cluster/membership/node_launcher.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// A host with an agent, and the processes that it is to run.
struct agent_host {
  std::string name;               ///< "beta": unique.
  std::string host;               ///< What ssh is told; empty: this machine, without ssh.
  std::string listen;             ///< Where its processes listen: see node_options::listen.
  std::filesystem::path program;  ///< There; empty: the path of our own.
  std::filesystem::path working_folder;
  std::map<std::string, std::string> environment;
  std::uint32_t cores = 0;             ///< That its processes count on.
  std::vector<std::string> processes;  ///< Names of the nodes that run there: "stage-1".
};

struct agent_settings {
  std::vector<agent_host> hosts;
  std::vector<std::string> ssh_options;        ///< Words that ssh gets before the host.
  std::chrono::milliseconds silence{10'000};   ///< After which an agent, or we, count as lost.
  std::chrono::milliseconds patience{15'000};  ///< For an agent to answer at first.
  bool verbose = false;
};

/// An agent on each host, each a process of this program that starts the host's node processes and
/// ends them with its stream: a child of ours, or what ssh runs there. The secret goes to them over
/// that stream alone. Returns when all agents have answered; where one does not, all are ended.
/// Errors: address_unavailable, bad_config and io_failed, naming node and host and saying what to
/// do.
[[nodiscard]] result<std::unique_ptr<node_launcher>> make_agent_launcher(process_link link,
                                                                         agent_settings settings);

}  // namespace troupe::cluster
