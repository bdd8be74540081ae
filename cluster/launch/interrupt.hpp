#pragma once

#include <functional>
#include <memory>

#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Called on the guard's own thread, where anything may be done.
struct interrupt_handlers {
  /// The first SIGINT, SIGTERM or SIGHUP: begin a clean stop.
  std::function<void(int signal)> on_stop;
  /// The second: kill what must not outlive us, at once. The process then exits with 128 + signal
  /// (130 for Ctrl-C), without running destructors.
  std::function<void(int signal)> on_abort;
  /// Asked at the second and each later one: true when what is under way must not be lost to it.
  /// The signal is passed over then.
  std::function<bool(int signal)> puts_off_abort = {};
  /// SIGTSTP (Ctrl-Z): this process is about to be stopped; and it has been continued. What it has
  /// started is to stop and go on with it.
  std::function<void()> on_suspend = {};
  std::function<void()> on_resume = {};
  /// SIGUSR1 or SIGUSR2, which asks for something else than an end and does not count as an
  /// interrupt; 0: neither is caught.
  int other_signal = 0;
  std::function<void(int signal)> on_other = {};
};

/// Turns Ctrl-C, Ctrl-Z, SIGTERM and SIGHUP into calls; SIGHUP unless it is ignored, as under
/// nohup. What the parent has queued (sigqueue) because it got the same counts once with what came
/// here directly: a terminal reaches both. At most one exists in a process at a time; its
/// destructor restores what was there before.
class interrupt_guard {
 public:
  /// Errors: io_failed (no descriptor left, or a guard exists already).
  [[nodiscard]] static result<interrupt_guard> install(interrupt_handlers handlers);

  /// Begins the clean stop, once, as the first signal would, but does not count as one: who manages
  /// this process may send the same as a signal too. Nothing happens where there is no guard.
  static void ask_to_stop(int signal) noexcept;

  /// SIGUSR1 or SIGUSR2 that reached another process of the run: as if it had reached this one.
  /// Nothing happens where there is no guard, or where it does not catch the signal.
  static void pass_on_other(int signal) noexcept;

  interrupt_guard(interrupt_guard&&) noexcept;
  interrupt_guard& operator=(interrupt_guard&&) noexcept;
  ~interrupt_guard();

 private:
  class listener;
  explicit interrupt_guard(std::unique_ptr<listener> impl) noexcept;

  std::unique_ptr<listener> impl_;
};

}  // namespace troupe::cluster
