#pragma once

#include <signal.h>

#include <cstdint>
#include <optional>

#include "cluster/training/saving/exit_codes.hpp"

namespace troupe::cluster {

/// How a trainer's process ended.
struct trainer_end {
  int code = 0;    ///< Exit code, where it exited.
  int signal = 0;  ///< The signal that killed it, or 0.
};

/// Decides after which ends of a trainer it is started again: a death by a signal and a failure of
/// the run, so many times in all. Not an end that somebody asked for, nor what would be the same
/// again: a run that is complete, settings that are refused, weights that cannot be saved. Settings
/// that are refused to a later trainer were not to the first one: a disk may be full, or a port
/// still be bound, and that may pass.
class restarts_core {
 public:
  explicit restarts_core(std::uint32_t most) : most_(most) {}

  /// A signal asks for the run's end: no trainer is started after that.
  void interrupt() noexcept { interrupted_ = true; }

  /// The number of the restart that is to follow, from 1; nullopt: there is none.
  [[nodiscard]] std::optional<std::uint32_t> on_end(const trainer_end& how) noexcept {
    if (interrupted_ || !may_differ(how) || made_ == most_) return std::nullopt;
    return ++made_;
  }

  [[nodiscard]] std::uint32_t made() const noexcept { return made_; }

 private:
  [[nodiscard]] bool may_differ(const trainer_end& how) const noexcept {
    if (how.signal == 0) return how.code == exit_failed || (how.code == exit_refused && made_ > 0);
    return how.signal != SIGINT && how.signal != SIGTERM && how.signal != SIGHUP;
  }

  std::uint32_t most_;
  std::uint32_t made_ = 0;
  bool interrupted_ = false;
};

}  // namespace troupe::cluster
