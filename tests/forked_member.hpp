#pragma once

#include <ATen/Parallel.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <caf/actor_system.hpp>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "actors/futures/requester.hpp"
#include "actors/protocol.hpp"
#include "actors/remote/node.hpp"
#include "actors/system.hpp"
#include "tests/bench/programs/ucx_node.hpp"

/// Nodes in processes that a test forks, for tests of what two processes of a machine do together.
namespace troupe::tests {

constexpr std::chrono::seconds patience{60};

/// A process's place in the cluster. What it cannot do ends the process: the other one sees that.
struct member {
  member(const std::string& name, messages::link_transport transport) : system(config) {
    actors::add_protocol(types);
    auto made = bench::start_node(system, types, transport, {.name = name});
    if (!made) std::_Exit(9);
    node = std::move(*made);
    ask.emplace(system, [this](const caf::node_id& id) { return node->name_of(id); });
  }
  ~member() { ask.reset(); }

  caf::strong_actor_ptr find(const std::string& address, const std::string& name) {
    const auto other = node->join(address, patience);
    if (!other) std::_Exit(8);
    const auto found = node->find(*other, name, patience);
    if (!found) std::_Exit(7);
    return *found;
  }

  actors::message_registry types;
  actors::system_config config;
  caf::actor_system system;
  std::unique_ptr<actors::node> node;
  std::optional<actors::requester> ask;
};

/// For threads of OpenMP do not survive a fork: a child would wait for them.
inline void compute_alone() {
  (void)at::get_num_threads();
  at::set_num_threads(1);
}

/// A forked process that reads the address it is given and says something back, or is killed. Made
/// before any thread begins.
class child {
 public:
  using work = std::function<void(int in, int out)>;

  explicit child(const work& what) {
    compute_alone();
    if (pipe(to_.data()) != 0 || pipe(from_.data()) != 0) throw std::runtime_error("no pipe");
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    at::set_num_threads(1);  // LibTorch replaces a pool of before the fork, in one thread at a time
    what(to_[0], from_[1]);
    std::_Exit(0);
  }
  child(const child&) = delete;
  child& operator=(const child&) = delete;
  ~child() {
    kill();
    for (const int end : {to_[0], to_[1], from_[0], from_[1]}) close(end);
  }

  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  /// All its threads have stopped when this returns.
  void stop() const {
    ::kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }
  void tell(const std::string& text) const { say(to_[1], text); }
  [[nodiscard]] std::string hear() const { return read_text(from_[0]); }

  static std::string read_text(int from) {
    std::array<char, 65> text{};
    return ::read(from, text.data(), 64) == 64 ? text.data() : "";
  }
  static void say(int to, std::string text) {
    text.resize(64);
    if (write(to, text.data(), 64) != 64) std::_Exit(6);
  }

 private:
  std::array<int, 2> to_{};
  std::array<int, 2> from_{};
  pid_t pid_ = -1;
};

}  // namespace troupe::tests
