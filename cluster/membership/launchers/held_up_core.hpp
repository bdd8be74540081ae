#pragma once

#include <chrono>
#include <map>
#include <string>

namespace troupe::cluster {

/// How long processes that were killed are waited for: one that a disk holds up does not end. That
/// is one time for each process, however often its end is asked for.
class held_up_core {
 public:
  using clock = std::chrono::steady_clock;

  /// After `usual` the user is told that a process has not ended; `longest` later it is waited for
  /// no longer.
  held_up_core(clock::duration usual, clock::duration longest) : usual_(usual), longest_(longest) {}

  struct wait {
    clock::time_point told;  ///< Then the user is told.
    clock::time_point over;  ///< Then it is waited for no longer.
    bool is_first = true;    ///< Nobody has waited for it before.
  };

  /// The end of a process is asked for, which was killed now or before.
  [[nodiscard]] wait asked(const std::string& name, clock::time_point now) {
    const auto [first, is_first] = since_.try_emplace(name, now);
    return {first->second + usual_, first->second + usual_ + longest_, is_first};
  }

  void ended(const std::string& name) { since_.erase(name); }

 private:
  clock::duration usual_;
  clock::duration longest_;
  std::map<std::string, clock::time_point> since_;  // when their ends were first asked for
};

}  // namespace troupe::cluster
