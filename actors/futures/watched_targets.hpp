#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_set>

namespace troupe::actors {

/// The targets of requests that somebody watches for their end, so that each is watched once. A
/// sender first puts its request into its table and then calls `add`; whoever learns of an end
/// first calls `remove` and then takes that target's requests out of the table. So no request to a
/// target that has ended is left behind: either the end finds it in the table, or `add` says that
/// nobody watches.
///
/// This relies on one pairing. The sender stores its request and then loads the place of its target
/// here; the end stores that place and then loads the requests. Each could miss the other's store
/// if both loads could overtake the stores before them, as acquire and release permit. All four are
/// sequentially consistent, so that in their single order a sender that still sees its target
/// watched has stored its request before the end looks.
///
/// A resource; safe from any thread.
class watched_targets {
 public:
  using tag = std::uintptr_t;

  /// Whether the caller is to watch the target, because nobody does. Call it after the request is
  /// in its table, whose `put` ends with a sequentially consistent store.
  [[nodiscard]] bool add(tag target) {
    auto& recent = recently_added(target);
    if (recent.load(std::memory_order_seq_cst) == target) return false;
    const std::scoped_lock lock(mutex_);
    const bool is_new = watched_.insert(target).second;
    // A sender that reads this takes nothing else from here, so it orders nothing.
    recent.store(target, std::memory_order_relaxed);
    return is_new;
  }

  /// The target has ended. Call it before looking for its requests, with sequentially consistent
  /// loads.
  void remove(tag target) {
    const std::scoped_lock lock(mutex_);
    watched_.erase(target);
    auto expected = target;
    recently_added(target).compare_exchange_strong(expected, 0, std::memory_order_seq_cst,
                                                   std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] std::atomic<tag>& recently_added(tag target) {
    return recent_[(target >> 6) % recent_.size()];
  }

  std::mutex mutex_;
  std::unordered_set<tag> watched_;
  std::array<std::atomic<tag>, 256> recent_{};  // some of watched_, to be found without the lock
};

}  // namespace troupe::actors
