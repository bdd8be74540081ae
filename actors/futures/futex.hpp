#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace troupe::actors {

/// Sleeps while `word` holds `expected`, until a wake or `deadline` (time_point::max(): none). May
/// return spuriously. Like std::atomic::wait, but with a deadline.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::steady_clock::time_point deadline) noexcept;

/// Wakes the threads that sleep on `word`. The word itself is not read, so it may be gone already.
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

}  // namespace troupe::actors
