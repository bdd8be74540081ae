#pragma once

#include <sys/types.h>

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "actors/remote/node.hpp"
#include "actors/system.hpp"
#include "actors/wire/message_registry.hpp"
#include "messages/link/link_options.hpp"

namespace troupe::tests {

/// How a node of these tests is connected, and how it decides that others are lost.
struct node_ways {
  messages::link_transport transport = messages::link_transport::tcp;
  bool ask_system = true;
  std::string listen = "";
  std::string device = {};  ///< The network device to use; empty: any.
};

/// An actor system with a node over UCX.
class member {
 public:
  member(const std::string& name, const node_ways& ways);

  [[nodiscard]] actors::node& node() { return *node_; }
  [[nodiscard]] caf::actor_system& system() { return system_; }
  /// Why the first node that is lost, or leaves, is gone.
  [[nodiscard]] std::future<error> loss() { return loss_.get_future(); }

 private:
  bool lost_ = false;
  std::promise<error> loss_;
  actors::message_registry types_;
  actors::system_config config_;
  caf::actor_system system_;
  std::unique_ptr<actors::node> node_;
};

/// Another process with a node "child" and its actors: "adder" adds two numbers; "mute" takes an
/// int and never answers; "worker" computes for so many seconds in its handler; "ender" exits the
/// process at an int; "linker" links itself to the actor it is sent. When it loses "parent" it
/// says why and exits with code 5. Killed by the destructor.
class node_process {
 public:
  /// `launcher`: a command to start it with, and its arguments.
  explicit node_process(const node_ways& ways, const std::vector<std::string>& launcher = {});
  node_process(const node_process&) = delete;
  node_process& operator=(const node_process&) = delete;
  ~node_process();

  [[nodiscard]] const std::string& address() const { return address_; }
  void signal(int number) const;
  /// Its last words, once it has lost its parent; empty when none come in time.
  [[nodiscard]] std::string last_words(std::chrono::milliseconds timeout) const;
  /// Waits for its end and returns its exit code.
  [[nodiscard]] int wait();

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
  std::string address_;
};

}  // namespace troupe::tests
