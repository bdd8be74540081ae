#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cluster/launch/process_group.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/unit/hold_up.hpp"

namespace troupe::tests {

/// How many threads and processes the end of a launch passes, where each may be held up by other
/// work on the machine (see hold_up).
inline constexpr int threads_of_an_end = 10;

/// How many threads on the machine compute, or wait for a core, for each core that it has.
[[nodiscard]] double threads_for_a_core();

/// Looks until nothing is left, and returns what still is when `limit` has passed, and as much more
/// as an end is held up meanwhile, two seconds at most: where it waits for an event, or where it
/// computes beside more threads than there are cores.
template <class Look>
auto left_after(std::chrono::milliseconds limit, Look look) {
  using seconds = std::chrono::duration<double>;
  const hold_up held;
  const auto begin = std::chrono::steady_clock::now();
  double threads = 0;  // of all looks
  for (int looks = 1;; ++looks) {
    auto left = look();
    threads += threads_for_a_core();
    const auto slower = std::min<seconds>(limit * (threads / looks - 1), std::chrono::seconds(2));
    const auto more = std::max<seconds>(slower, held.over(threads_of_an_end));
    if (left.empty() || std::chrono::steady_clock::now() - begin > limit + more) return left;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

/// A process in a host's namespace, with its number outside of it.
struct host_process {
  pid_t pid = 0;
  std::string command;  ///< Its words, with spaces between.
};

/// A host of these tests: namespaces of its own (network, processes, mounts, host name, IPC) on
/// this machine, whose files it shares. Its first process is an sshd, or sleeps where it has none.
class test_host {
 public:
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::string& address() const { return address_; }
  /// The command with which nsenter runs another one there.
  [[nodiscard]] std::vector<std::string> entered(const std::vector<std::string>& command) const;
  /// Runs something there to its end.
  program_outcome run(const std::vector<std::string>& command,
                      const std::function<void(pid_t, std::string_view)>& on_line = {},
                      std::chrono::minutes limit = std::chrono::minutes(2)) const;
  /// What runs there beside its first process.
  [[nodiscard]] std::vector<host_process> processes() const;
  /// Those whose command holds a word.
  [[nodiscard]] std::vector<host_process> processes_with(const std::string& word) const;
  /// Waits until nothing runs there, and returns what still does when `limit` has passed, and as
  /// much more as an end is held up meanwhile.
  [[nodiscard]] std::vector<host_process> left_after(std::chrono::milliseconds limit) const;
  [[nodiscard]] pid_t first_process() const { return first_; }
  /// Takes its network down for good: nothing reaches it or comes from it any more.
  void cut_off() const;

 private:
  friend class test_hosts;
  std::string name_;
  std::string address_;
  pid_t first_ = 0;  // outside of its namespace
};

/// A program that runs on a host while the test goes on; killed with this object.
class running_program {
 public:
  running_program(const test_host& where, const std::vector<std::string>& command);

  /// Waits for its end, which must come within a minute.
  program_outcome end();
  /// Whether it ends within so long.
  bool ends_within(std::chrono::milliseconds time);
  /// Waits until it has said this on its standard error; false after a minute, or its end.
  bool says(std::string_view text);

 private:
  struct state;
  std::vector<std::string> command_;
  std::shared_ptr<state> state_;
  std::optional<cluster::process_group> group_;
};

/// "home", where the launcher runs, and hosts with sshd, on one bridge. They end with this object.
class test_hosts {
 public:
  /// Why this machine cannot have them; empty: it can.
  [[nodiscard]] static std::string unavailable();

  explicit test_hosts(const std::vector<std::string>& names);
  test_hosts(const test_hosts&) = delete;
  test_hosts& operator=(const test_hosts&) = delete;
  ~test_hosts();

  [[nodiscard]] const test_host& home() const { return home_; }
  [[nodiscard]] const test_host& at(std::size_t index) const { return hosts_.at(index); }
  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const {
    return folder_ / name;
  }
  /// A file of settings for ssh with which home reaches the hosts (ssh -F).
  [[nodiscard]] std::filesystem::path ssh_config() const { return folder_ / "ssh_config"; }
  /// Rewrites it: which key, and which hosts are known.
  void write_ssh_config(bool with_key = true, bool with_known_hosts = true) const;
  /// Writes the file that /etc/hosts is on a host.
  void write_names(const std::string& host, const std::string& text) const;

 private:
  struct starting;
  /// Begins a host, of which `ready` is a line as soon as it is up.
  starting begin(const std::string& name, const std::string& script, const std::string& ready);
  /// Waits until it is.
  static test_host await(const starting& which);
  void connect(test_host& host, const std::string& address) const;

  scratch_folder folder_;
  test_host home_;
  std::vector<test_host> hosts_;
  std::vector<std::unique_ptr<cluster::process_group>> groups_;
};

}  // namespace troupe::tests
