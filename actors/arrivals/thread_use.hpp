#pragma once

#include <chrono>

namespace troupe::actors {

/// What a thread has done since it began.
struct thread_use {
  std::chrono::nanoseconds computed{0};
  long waits = 0;  ///< Times that it gave its processor up for something to happen.

  /// Of the calling thread. Two system calls.
  [[nodiscard]] static thread_use now();
};

/// Whether a thread has computed for longer than `longest` between the two, or has waited. If more
/// time than that has passed and it was not busy, others had its processor.
[[nodiscard]] inline bool was_busy(const thread_use& before, const thread_use& after,
                                   std::chrono::nanoseconds longest) {
  return after.computed - before.computed > longest || after.waits > before.waits;
}

}  // namespace troupe::actors
