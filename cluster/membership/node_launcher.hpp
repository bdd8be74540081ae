#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/remote/node.hpp"
#include "cluster/config/config_tables.hpp"
#include "cluster/config/sources/command_line.hpp"
#include "messages/base/error.hpp"
#include "messages/link/cluster_secret.hpp"
#include "messages/link/link_options.hpp"

namespace troupe::cluster {

/// That a node has ended, and how: "stage-1 was killed by signal 9 (SIGKILL)".
struct node_end {
  std::string node;      ///< Empty: where its agent never began.
  error how;             ///< peer_lost; another code where what was asked of it cannot work there.
  bool is_told = false;  ///< The user has been told.
};

/// Where nodes run: the port behind a node_group, with one implementation for processes and one
/// for threads. Used by one thread, but for what says otherwise.
class node_launcher {
 public:
  virtual ~node_launcher() = default;

  /// The link of the trainer's node.
  [[nodiscard]] virtual actors::link_factory trainer_link() = 0;

  /// Starts one node that will join the trainer. Errors: io_failed.
  [[nodiscard]] virtual result<void> start(const std::string& name,
                                           const std::string& trainer_address) = 0;

  /// Starts one that was not planned for: on this host (see host_of), or where that is lost on
  /// another one. Errors: bad_config where that cannot be done, peer_lost where no host is left,
  /// io_failed.
  [[nodiscard]] virtual result<void> start_on(const std::string& /*host*/, const std::string& name,
                                              const std::string& trainer_address) {
    return start(name, trainer_address);
  }

  /// Makes sure that a node has ended; it is none of `ends` from then on. Errors: bad_config where
  /// that cannot be done, io_failed.
  [[nodiscard]] virtual result<void> give_up(const std::string& name) = 0;

  /// The nodes that have ended, were not told to and have not been given up, in that order.
  [[nodiscard]] virtual std::vector<node_end> ends() const = 0;

  /// Has a process join that has not been started here and outlives the trainer: it waits for an
  /// invitation at the other end of this socket. Errors: bad_config where nodes are threads of this
  /// process; those of send_invitation.
  [[nodiscard]] virtual result<void> invite(int socket, const std::string& trainer_address);

  /// Whether others start the nodes, when they like: `start` only says that one may join.
  [[nodiscard]] virtual bool starts_none() const { return false; }

  /// A node of another host is silent: the agents are asked whether they are there, if there are
  /// any. From any thread; does not wait.
  virtual void ask_agents() {}

  /// A node is lost, and there is room on other hosts for all that ran on its own: that host is
  /// given up, with all its nodes, at once or soon if its agent leaves the question of ask_agents
  /// unanswered while one elsewhere has answered. From any thread; does not wait.
  virtual void give_up_unanswered(const std::string& /*name*/) {}

  /// What is lost as one with a node: the name of its host. Empty: all nodes are on one. From any
  /// thread.
  [[nodiscard]] virtual std::string host_of(const std::string& /*name*/) const { return {}; }

  /// A node and where it runs: "stage-1 on node beta (10.0.0.2)".
  [[nodiscard]] virtual std::string place_of(const std::string& name) const { return name; }

  /// What the program of a node has to be that joins: see program_build. Empty: nothing to compare,
  /// for they are started here. From any thread.
  [[nodiscard]] virtual std::string required_build() const { return {}; }

  /// The nodes are about to be told to end: from here on an end is none of `ends`.
  virtual void expect_ends() = 0;

  /// After expect_ends: waits for nodes that were told to end, and ends those that take too long;
  /// at once, when not all of them can end in order.
  virtual void join(bool in_order) = 0;

  /// Ends node processes at once, all or the one of this name; nothing where none are ours. From
  /// any thread.
  virtual void kill() {}
  virtual void kill(const std::string& /*name*/) {}

  /// Node processes stop and go on with the trainer; nothing where none are ours. From any thread.
  virtual void suspend() {}
  virtual void resume() {}
};

/// How the processes of a run find and trust each other.
struct process_link {
  cluster::transport transport = cluster::transport::automatic;
  cluster::network network = cluster::network::sealed;
  messages::cluster_secret secret = {};
  bool beyond_loopback = false;  ///< Other machines reach the trainer.
};

/// What a config says of it; without a secret of the user's, a random one. Errors: bad_config.
[[nodiscard]] result<process_link> process_link_of(const link_config& config);

/// What a child was told of it. Errors: bad_config.
[[nodiscard]] result<process_link> process_link_of(const node_options& options);

/// What node_launcher::invite does where nodes are processes.
[[nodiscard]] result<void> invite_over(const process_link& link, int socket,
                                       const std::string& trainer_address);

/// Processes of this program, started with --join, over UCX. They are handed the secret through a
/// pipe: it is in no argument, environment or file. Each is marked in its environment as a node
/// of this process. `processes`: as many as there will be, for which open files must suffice.
/// Errors: bad_config in a node, which has not served as its command line says and would start
/// nodes without end; io_failed.
[[nodiscard]] result<std::unique_ptr<node_launcher>> make_process_launcher(process_link link,
                                                                           bool verbose,
                                                                           std::size_t processes);

/// Threads of this process over the loopback link, which build stages.
[[nodiscard]] std::unique_ptr<node_launcher> make_thread_launcher(registries known);

/// What frames between processes really pass through: `automatic` is shared memory, for all nodes
/// run on one machine. Of `mixed`, what they pass through between machines.
[[nodiscard]] messages::link_transport transport_of(const process_link& link) noexcept;
[[nodiscard]] messages::link_transport transport_of(const link_config& config) noexcept;
/// For a link with one door: of `mixed` the one between machines, without a door inside this one.
[[nodiscard]] messages::link_options link_options_of(const process_link& link);
[[nodiscard]] actors::link_factory process_link_factory(const process_link& link);

}  // namespace troupe::cluster
