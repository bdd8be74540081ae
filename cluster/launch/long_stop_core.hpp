#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace troupe::cluster {

/// Whether a process that is looked at again and again has been stopped (SIGSTOP) for too long.
/// Only time in which the observer itself was awake counts: a look adds `look_every` at most,
/// however late it comes, and a late look finds nothing too long. What stopped the observer may
/// have stopped the process with it, and lets it go on a moment later. Pure.
class long_stop_core {
 public:
  using clock = std::chrono::steady_clock;

  /// Between two looks, at most.
  static constexpr std::chrono::milliseconds look_every{100};

  explicit long_stop_core(clock::duration longest) : longest_(longest) {}

  /// A look. True: it has been stopped for `longest`.
  [[nodiscard]] bool look(bool is_stopped, clock::time_point now) {
    const auto elapsed = now - std::exchange(last_, now);
    if (!is_stopped) {
      stopped_.reset();
      return false;
    }
    stopped_ = stopped_ ? *stopped_ + std::min<clock::duration>(elapsed, look_every)
                        : clock::duration::zero();
    return *stopped_ >= longest_ && elapsed < 2 * look_every;
  }

 private:
  clock::duration longest_;
  clock::time_point last_;
  std::optional<clock::duration> stopped_;  // as far as looks have seen it
};

}  // namespace troupe::cluster
