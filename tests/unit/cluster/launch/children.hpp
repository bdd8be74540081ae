#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cluster/launch/child_process.hpp"
#include "cluster/launch/process_group.hpp"

/// What the tests of launching share: children to start, and what a group reports of them.
namespace troupe::tests {

using namespace std::chrono_literals;
using namespace troupe::cluster;
using std::chrono::steady_clock;

inline constexpr auto bound = 20s;  // of every wait below
inline constexpr auto long_grace = 60s;

inline child_spec shell(const std::string& name, const std::string& script) {
  return {name, {"-c", script}, {}, "/bin/sh"};
}

inline child_spec helper(const std::string& name, const std::string& part) {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return {name, {part}, {}, here / "launch_helper"};
}

/// Remembers what a group reports, in order: "out stage-1: text", "exit stage-1 exited with ..".
class recorder {
 public:
  group_events events() {
    return {[this](const child_exit& ended) {
              if (on_exit) on_exit(ended);
              add("exit " + describe(ended));
            },
            [this](std::string_view name, output_stream stream, std::string_view line) {
              add((stream == output_stream::out ? "out " : "err ") + std::string(name) + ": " +
                  std::string(line));
            }};
  }

  std::function<void(const child_exit&)> on_exit;

  std::vector<std::string> all() {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

  /// The first report that begins so; waits for it.
  std::string await(const std::string& beginning) {
    std::unique_lock lock(mutex_);
    const auto find = [&] {
      return std::find_if(seen_.begin(), seen_.end(),
                          [&](const std::string& one) { return one.starts_with(beginning); });
    };
    if (!changed_.wait_for(lock, bound, [&] { return find() != seen_.end(); }))
      FAIL("nothing began with: " << beginning);
    return *find();
  }

  pid_t await_pid(const std::string& beginning) {
    return static_cast<pid_t>(std::stol(await(beginning).substr(beginning.size())));
  }

 private:
  void add(std::string report) {
    const std::lock_guard lock(mutex_);
    seen_.push_back(std::move(report));
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> seen_;
};

inline process_group group_of(recorder& reports) {
  auto group = process_group::create(reports.events());
  REQUIRE(group);
  return std::move(*group);
}

/// Waits for the end of a process that need not be our child.
inline bool ends(pid_t pid) {
  const descriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return errno == ESRCH;
  pollfd watched{pidfd.get(), POLLIN, 0};
  return ::poll(&watched, 1, std::chrono::milliseconds(bound).count()) == 1;
}

inline bool no_child_is_left() {
  return ::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD;
}

inline std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> out;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(parent) + "/task")) {
    std::ifstream list(task.path() / "children");
    for (pid_t child = 0; list >> child;) out.push_back(child);
  }
  return out;
}

inline pid_t parent_of(pid_t child) {
  std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
  std::string pid, name, state;
  pid_t parent = 0;
  stat >> pid >> name >> state >> parent;  // a name without blanks
  return parent;
}

using reports_list = std::vector<std::string>;

}  // namespace troupe::tests
