#pragma once

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cluster/launch/process_group.hpp"
#include "tests/chaos/trial.hpp"

namespace troupe::chaos {

/// A line of a run's JSON: a step, an evaluation, or that a trainer was started again.
struct told_line {
  std::uint64_t step = 0;
  bool is_evaluation = false;
  std::string text;  ///< What two runs must have alike: all up to the times.
  seconds at{};
};

/// A program of ours that runs while somebody looks on. Used by one thread; one at a time of a
/// process, which takes in all orphans.
class scene {
 public:
  /// `json`: what it writes its lines to. Throws where it cannot be started.
  scene(std::string program, std::vector<std::string> arguments,
        std::map<std::string, std::string> environment, std::filesystem::path json);
  scene(const scene&) = delete;
  scene& operator=(const scene&) = delete;
  ~scene();

  /// Since its start.
  [[nodiscard]] seconds now() const;
  /// Of a moment of the steady clock, in nanoseconds.
  [[nodiscard]] seconds at(std::uint64_t steady_ns) const;
  [[nodiscard]] bool has_ended();
  /// With code 0.
  [[nodiscard]] bool has_ended_well();
  /// The process that has stages: the program, or with --max-restarts the child that it watches; 0:
  /// there is none now.
  [[nodiscard]] pid_t trainer() const;
  /// The child that keeps versions while trainers come and go; 0: there is none, or no trainer.
  [[nodiscard]] pid_t keeper() const;
  /// The process that has a stage now, "stage-1", "stage-1.2" or "understudy-1"; 0: there is none.
  [[nodiscard]] pid_t process_of(const std::string& stage) const;
  /// Its name.
  [[nodiscard]] std::string name_now(const std::string& stage) const;
  /// Processes that were started as understudies, by name.
  [[nodiscard]] std::vector<std::string> understudies() const;
  /// Those of them that have joined and have no place, as of the last look.
  [[nodiscard]] std::vector<std::string> waiting_understudies() const;

  /// What it has said, as of the last look.
  [[nodiscard]] const std::vector<log_line>& log() const { return log_; }
  /// Its JSON, as of the last look, with when that was.
  [[nodiscard]] const std::vector<told_line>& told() const { return told_; }
  /// Of these lines, which told() has not: that another trainer goes on, behind `step`.
  [[nodiscard]] const std::vector<told_line>& restarts() const { return restarts_; }
  [[nodiscard]] std::uint64_t steps_told() const;
  /// Lines that hold a text, of those from the `first` on.
  [[nodiscard]] std::size_t count_of(const std::string& text, std::size_t first = 0) const;
  void look();

  /// Looks each millisecond until a condition is met. False when the run ends first, or after
  /// `at_most`.
  bool wait_for(const std::function<bool()>& is_met, seconds at_most);

  /// Waits for its end, at most `bound`, and where this process has no other children for every
  /// process that came of it.
  [[nodiscard]] outcome end(seconds bound, bool is_alone = true);

 private:
  /// That has taken a stage's place, as of the last look; empty: none has.
  [[nodiscard]] std::string understudy_of(const std::string& stage) const;
  [[nodiscard]] std::pair<pid_t, std::string> find(const std::string& stage) const;
  void read_json();
  /// Reaps what lost trainers have started: the next one leaves a socket alone while there is a
  /// process of its number, be it a zombie.
  void take_in_stages();

  struct shared {
    std::mutex mutex;
    std::vector<log_line> log;
    std::optional<cluster::child_exit> ended;
  };
  std::chrono::steady_clock::time_point began_;
  std::filesystem::path json_;
  std::shared_ptr<shared> shared_ = std::make_shared<shared>();
  std::optional<cluster::process_group> group_;
  const bool is_watched_;  // by the program, which trains in a child
  pid_t program_ = 0;
  std::vector<log_line> log_;
  std::vector<told_line> told_, restarts_;
  std::streamoff read_ = 0;      // of the JSON
  std::vector<orphan> orphans_;  // of trainers that were lost
};

}  // namespace troupe::chaos
