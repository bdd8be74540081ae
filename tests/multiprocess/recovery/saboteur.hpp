#pragma once

#include <signal.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"

// What happens to the processes of a run while its JSON lines are read.

namespace troupe::tests {

/// The process of a run's stage, whichever it is now; 0: there is none.
inline pid_t process_of(pid_t program, const std::string& stage) {
  pid_t found = 0;
  for (const auto pid : children_of(program)) {
    const auto line = bytes_of("/proc/" + std::to_string(pid) + "/cmdline");
    const auto at = line.find(stage);
    if (at == std::string::npos) continue;
    const char next = line[at + stage.size()];
    if (next == '\0' || next == '.') found = pid;
  }
  return found;
}

/// Sends a signal to the process of a run's stage as soon as there is one; false: there is none
/// within a minute. (Number 0 would be everybody in the group of the tests.)
inline bool signal_to(pid_t program, const std::string& stage, int signal = SIGKILL) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (std::chrono::steady_clock::now() < end) {
    if (const auto process = process_of(program, stage); process != 0)
      return ::kill(process, signal) == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

struct fault {
  std::string stage;
  int signal = SIGKILL;
  words with = {};  ///< Other stages that get it too.
  std::function<void()> before = {};
};

/// The steps that a run's JSON lines tell, in their order; an evaluation is 0.
inline std::vector<int> steps_in(const std::filesystem::path& json) {
  std::vector<int> steps;
  std::ifstream in(json);
  for (std::string line; std::getline(in, line);)
    steps.push_back(line.find("{\"step\":") == 0 ? std::atoi(&line[8]) : 0);
  return steps;
}

/// Sends signals to stages' processes once a run's JSON lines tell so many, each once, in order.
/// Each but the first waits until the run has said how it goes on after the one before: on a busy
/// machine a signal may be late, and two at once would be one loss.
class saboteur {
 public:
  saboteur(std::filesystem::path json, std::map<std::size_t, fault> faults)
      : watch_([this, json = std::move(json), faults = std::move(faults)] {
          for (std::size_t said_before = 0; const auto& [lines, what] : faults) {
            while (!over_ &&
                   (program_ == 0 || sequels_said_ < said_before || steps_in(json).size() < lines))
              std::this_thread::sleep_for(std::chrono::milliseconds(2));
            said_before = sequels_said_ + 1;
            if (what.before) what.before();
            bool sent = send(what.signal, what.stage);
            for (const auto& other : what.with) sent = send(what.signal, other) && sent;
            if (sent) ++done_;
          }
        }) {}
  saboteur(const saboteur&) = delete;
  saboteur& operator=(const saboteur&) = delete;
  ~saboteur() {
    over_ = true;
    watch_.join();
  }

  /// For run_program.
  void operator()(pid_t program, std::string_view line) {
    program_ = program;
    for (const std::string_view sequel : {" replayed from step ", "the run goes on after step ",
                                          "the run goes on from ", "; going on with "})
      if (line.find(sequel) != std::string_view::npos) {
        ++sequels_said_;
        return;
      }
  }
  [[nodiscard]] std::size_t done() const { return done_; }

 private:
  bool send(int signal, const std::string& stage) {
    pid_t pid = 0;
    while (!over_ && (pid = process_of(program_, stage)) == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return !over_ && ::kill(pid, signal) == 0;
  }

  std::atomic<pid_t> program_ = 0;
  std::atomic<bool> over_ = false;
  std::atomic<std::size_t> done_ = 0;
  std::atomic<std::size_t> sequels_said_ = 0;
  std::thread watch_;  // last: it uses the rest
};

inline int count_of(const std::string& text, std::string_view what) {
  int count = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

}  // namespace troupe::tests
