#include "actors/futures/future_base.hpp"

#include <thread>

#include "actors/futures/futex.hpp"

namespace troupe::actors {
namespace {

/// Marks a list of continuations that takes no more.
class closed_list final : public continuation {
 public:
  void settled(future_base&) noexcept override {}
} closed;

/// An answer that is on its way often comes before a sleep would have begun.
constexpr int looks_before_sleep = 64;

}  // namespace

wait_helper*& helper_of_this_thread() noexcept {
  thread_local wait_helper* helper = nullptr;
  return helper;
}

bool future_base::wait_until(clock::time_point deadline) {
  if (ready()) return true;
  if (auto* const mine = helper_of_this_thread()) return mine->help_until(*this, deadline);
  if (auto* const its = helper()) return its->help_until(*this, deadline);
  return sleep_until(deadline);
}

bool future_base::sleep_until(clock::time_point deadline) const noexcept {
  for (int i = 0; i < looks_before_sleep; ++i) {
    if (ready()) return true;
    std::this_thread::yield();
  }
  while (true) {
    auto now = word_.load(std::memory_order_acquire);
    if (now == settled) return true;
    if (deadline != clock::time_point::max() && clock::now() >= deadline) return false;
    const auto asleep = now | watched;
    if (now != asleep && !word_.compare_exchange_weak(now, asleep, std::memory_order_acq_rel))
      continue;
    futex_wait(word_, asleep, deadline);
  }
}

bool future_base::claim() noexcept {
  auto now = word_.load(std::memory_order_relaxed);
  while (now < claimed) {
    if (word_.compare_exchange_weak(now, now | claimed, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void future_base::publish() noexcept {
  if (word_.exchange(settled, std::memory_order_seq_cst) & watched) futex_wake_all(word_);
  auto* newest = continuations_.exchange(&closed, std::memory_order_acq_rel);
  continuation* oldest = nullptr;
  while (newest) {
    auto* const next = newest->next_;
    newest->next_ = oldest;
    oldest = std::exchange(newest, next);
  }
  while (oldest) {
    auto* const next = oldest->next_;
    oldest->settled(*this);
    oldest = next;
  }
}

void future_base::attach(continuation& what) noexcept {
  what.next_ = continuations_.load(std::memory_order_acquire);
  while (what.next_ != &closed) {
    if (continuations_.compare_exchange_weak(what.next_, &what, std::memory_order_acq_rel)) return;
  }
  what.settled(*this);
}

}  // namespace troupe::actors
