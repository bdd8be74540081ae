#include "actors/futures/futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace troupe::actors {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::steady_clock::time_point deadline) noexcept {
  timespec until{};
  const bool bounded = deadline != std::chrono::steady_clock::time_point::max();
  if (bounded) {
    const auto since = std::max(deadline.time_since_epoch(), std::chrono::nanoseconds::zero());
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
    until.tv_sec = seconds.count();
    until.tv_nsec = std::chrono::nanoseconds(since - seconds).count();
  }
  // With a bit set the time is absolute, on the monotonic clock.
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, expected, bounded ? &until : nullptr,
          nullptr, FUTEX_BITSET_MATCH_ANY);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace troupe::actors
