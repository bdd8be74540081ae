#pragma once

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "actors/futures/futex.hpp"

namespace troupe::actors {

/// The outstanding requests, by number, and the thread that watches their deadlines. A number
/// consists of a slot and how often it was used, so that a late answer finds nothing. Taking a
/// request out is one compare-and-swap, and whoever succeeds settles it; another puts the slot on a
/// list, which a sender takes over whole when it has no free slot left. So those who bring answers
/// take no lock, and share no cache line with senders for each of them. Deadlines are stored in the
/// slots: the watching thread sleeps until the earliest, then scans all slots, at most once a
/// millisecond. A resource; safe from any thread.
template <class T>
class request_table {
 public:
  using clock = std::chrono::steady_clock;
  /// What identifies a request beside its number, for `take_tagged` and `take_owned`.
  using tag = std::uintptr_t;

  /// `expired` gets the requests that were not taken by their deadline, on the watching thread.
  explicit request_table(std::function<void(T*)> expired)
      : expired_(std::move(expired)), watch_([this] { watch(); }) {}
  request_table(const request_table&) = delete;
  request_table& operator=(const request_table&) = delete;
  ~request_table() { stop(); }

  /// Ends the watching thread once it has finished its current work. Not to be called from
  /// `expired`.
  void stop() {
    stopping_.store(true, std::memory_order_seq_cst);
    ring_the_bell();
    if (watch_.joinable()) watch_.join();
  }

  /// Returns the request's number, of 60 bits; 0 if the table is full. Its store and the scans of
  /// `take_tagged` and `take_all` are sequentially consistent, for callers that pair them with
  /// others (see watched_targets).
  std::uint64_t put(T* item, tag of, clock::time_point deadline, tag owner = 0) {
    const auto index = free_slot();
    if (index == none) return 0;
    auto& at = slot_at(index);
    const auto use = at.uses = at.uses % most_uses + 1;
    const auto due = deadline.time_since_epoch().count();
    at.item.store(item, std::memory_order_relaxed);
    at.of.store(of, std::memory_order_relaxed);
    at.owner.store(owner, std::memory_order_relaxed);
    at.deadline.store(due, std::memory_order_relaxed);
    at.use.store(use, std::memory_order_seq_cst);
    if (due < earliest_.load(std::memory_order_seq_cst)) {
      lower_earliest(due);
      ring_the_bell();
    }
    return use << index_bits | index;
  }

  /// What was put under that number: one caller gets it, all others get null.
  T* take(std::uint64_t number) {
    const auto index = static_cast<std::uint32_t>(number & (slots - 1));
    auto use = number >> index_bits;
    if (use == 0 || index >= used_.load(std::memory_order_acquire)) return nullptr;
    auto& at = slot_at(index);
    if (!at.use.compare_exchange_strong(use, 0, std::memory_order_acq_rel)) return nullptr;
    T* const item = at.item.load(std::memory_order_relaxed);
    give_back(at, index);
    return item;
  }

  /// Takes out everything with one tag and passes it to `to`.
  template <class To>
  void take_tagged(tag of, To to) {
    for_each([&](const slot& at, std::uint64_t number) {
      if (at.of.load(std::memory_order_relaxed) != of) return;
      if (T* const item = take(number)) to(item);
    });
  }

  /// Takes out everything of one owner, who puts nothing in any more, and gives it to `to`. When it
  /// returns, `expired` is done with that owner's requests. Not from `expired`.
  template <class To>
  void take_owned(tag owner, To to) {
    for_each([&](const slot& at, std::uint64_t number) {
      if (at.owner.load(std::memory_order_relaxed) != owner) return;
      if (T* const item = take(number)) to(item);
    });
    const std::scoped_lock until_done(expiring_);
  }

  template <class To>
  void take_all(To to) {
    for_each([&](const slot&, std::uint64_t number) {
      if (T* const item = take(number)) to(item);
    });
  }

  /// When the time of a request is over that is in the table.
  [[nodiscard]] clock::time_point deadline_of(std::uint64_t number) const {
    const auto index = static_cast<std::uint32_t>(number & (slots - 1));
    if (index >= used_.load(std::memory_order_acquire)) return {};
    return clock::time_point(clock::duration(slot_at(index).deadline.load()));
  }

  /// Too many rather than too few, where others put and take meanwhile.
  [[nodiscard]] std::size_t outstanding() const {
    // What was taken is read first: what was put cannot be less then.
    const auto taken = static_cast<std::uint32_t>(returned_.load(std::memory_order_seq_cst) >> 32U);
    return put_.load(std::memory_order_seq_cst) - taken;
  }

 private:
  static constexpr unsigned index_bits = 26;
  static constexpr std::uint32_t slots = std::uint32_t{1} << index_bits;
  static constexpr std::uint64_t most_uses = (std::uint64_t{1} << (60 - index_bits)) - 1;
  static constexpr std::uint32_t chunk_slots = 4096;
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  static constexpr auto coarseness = std::chrono::milliseconds(1);

  struct alignas(64) slot {
    std::atomic<std::uint64_t> use = 0;  // 0: free
    std::atomic<T*> item = nullptr;
    std::atomic<tag> of = 0;
    std::atomic<tag> owner = 0;
    std::atomic<clock::rep> deadline = 0;
    std::uint64_t uses = 0;     // of the request that got the slot last
    std::uint32_t next = none;  // while it is free: the one behind it in its list
  };
  using chunk = std::array<slot, chunk_slots>;

  [[nodiscard]] slot& slot_at(std::uint32_t index) const {
    auto* const in = chunks_[index / chunk_slots].load(std::memory_order_acquire);
    return (*in)[index % chunk_slots];
  }

  std::uint32_t free_slot() {
    const std::scoped_lock lock(free_mutex_);
    if (free_ == none) free_ = take_returned();
    const auto index = free_ == none ? new_slot() : free_;
    if (index == none) return none;
    free_ = slot_at(index).next;
    // Before the request is in its slot, and in one order with that: see `outstanding`, `put`.
    put_.store(put_.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
    return index;
  }

  /// A slot that nobody had before, with nothing behind it; none: there are no more.
  std::uint32_t new_slot() {
    const auto index = used_.load(std::memory_order_relaxed);
    if (index == slots) return none;
    if (index % chunk_slots == 0) {
      owned_.push_back(std::make_unique<chunk>());
      chunks_[index / chunk_slots].store(owned_.back().get(), std::memory_order_release);
    }
    used_.store(index + 1, std::memory_order_release);
    return index;
  }

  void give_back(slot& at, std::uint32_t index) {
    auto before = returned_.load(std::memory_order_relaxed);
    std::uint64_t after = 0;
    do {
      at.next = static_cast<std::uint32_t>(before);
      after = ((before >> 32U) + 1) << 32U | index;
    } while (!returned_.compare_exchange_weak(before, after, std::memory_order_seq_cst,
                                              std::memory_order_relaxed));
  }

  /// The first slot of those that came back, which are the caller's now; none: there are none.
  std::uint32_t take_returned() {
    auto before = returned_.load(std::memory_order_relaxed);
    while (static_cast<std::uint32_t>(before) != none &&
           !returned_.compare_exchange_weak(before, before | none, std::memory_order_seq_cst,
                                            std::memory_order_relaxed)) {
    }
    return static_cast<std::uint32_t>(before);
  }

  template <class Visit>
  void for_each(Visit visit) {
    if (outstanding() == 0) return;
    const auto used = used_.load(std::memory_order_acquire);
    for (std::uint32_t index = 0; index < used; ++index) {
      const auto& at = slot_at(index);
      const auto use = at.use.load(std::memory_order_seq_cst);
      if (use != 0) visit(at, use << index_bits | index);
    }
  }

  void lower_earliest(clock::rep to) {
    auto now = earliest_.load(std::memory_order_relaxed);
    while (to < now && !earliest_.compare_exchange_weak(now, to, std::memory_order_seq_cst)) {
    }
  }

  void ring_the_bell() {
    bell_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(bell_);
  }

  void watch() {
    pthread_setname_np(pthread_self(), "troupe-timeouts");
    while (true) {
      const auto heard = bell_.load(std::memory_order_seq_cst);
      if (stopping_.load(std::memory_order_seq_cst)) return;
      const auto due = earliest_.load(std::memory_order_seq_cst);
      const auto now = clock::now();
      if (now.time_since_epoch().count() >= due) {
        expire(now);
      } else {
        futex_wait(bell_, heard, clock::time_point(clock::duration(due)));
      }
    }
  }

  void expire(clock::time_point now) {
    const std::scoped_lock busy(expiring_);
    // Before the look: who puts a request in during it either is seen or lowers this again.
    earliest_.store(never, std::memory_order_seq_cst);
    clock::rep next = never;
    for_each([&](const slot& at, std::uint64_t number) {
      const auto due = at.deadline.load(std::memory_order_relaxed);
      if (due > now.time_since_epoch().count()) {
        next = std::min(next, due);
      } else if (T* const item = take(number)) {
        expired_(item);
      }
    });
    if (next != never)
      lower_earliest(std::max(next, (now + coarseness).time_since_epoch().count()));
  }

  static constexpr clock::rep never = clock::time_point::max().time_since_epoch().count();

  const std::function<void(T*)> expired_;
  std::array<std::atomic<chunk*>, slots / chunk_slots> chunks_{};

  // Senders' alone:
  alignas(64) std::mutex free_mutex_;  // guards the next three
  std::uint32_t free_ = none;          // the first free slot
  std::vector<std::unique_ptr<chunk>> owned_;
  std::atomic<std::uint32_t> put_ = 0;  // requests that were ever put in, modulo 2^32

  // Written by those who take requests out: the first of the slots that came back in the lower
  // half, how many ever did, modulo 2^32, in the upper one.
  alignas(64) std::atomic<std::uint64_t> returned_ = none;

  // Read by all and rarely written:
  alignas(64) std::atomic<std::uint32_t> used_ = 0;  // slots that were ever handed out
  std::atomic<clock::rep> earliest_ = never;
  std::atomic<std::uint32_t> bell_ = 0;
  std::atomic<bool> stopping_ = false;
  std::mutex expiring_;  // held while the watch takes out what is due
  std::thread watch_;
};

}  // namespace troupe::actors
