#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "messages/base/error.hpp"

namespace troupe::actors {

class future_base;

/// Does other work in a thread that waits for a future: a pool (see pool.hpp).
class wait_helper {
 public:
  /// Returns true once `awaited` is settled, false if `deadline` passes first. Work that was begun
  /// is finished, even after the deadline.
  virtual bool help_until(future_base& awaited, std::chrono::steady_clock::time_point deadline) = 0;

 protected:
  ~wait_helper() = default;
};

/// What this thread does while it waits; null: it sleeps. Set by a pool for its own threads.
[[nodiscard]] wait_helper*& helper_of_this_thread() noexcept;

/// Something to do when a future is settled. Owns itself: `settled` is its last call.
class continuation {
 public:
  virtual ~continuation() = default;
  virtual void settled(future_base& of) noexcept = 0;

 private:
  friend class future_base;
  continuation* next_ = nullptr;
};

/// The state that a future shares with whoever settles it, except the value: who may settle it (the
/// first to claim it), who waits, and the continuations. Intrusively reference-counted. Safe from
/// any thread.
class future_base {
 public:
  using clock = std::chrono::steady_clock;

  future_base() = default;
  future_base(const future_base&) = delete;
  future_base& operator=(const future_base&) = delete;

  void add_reference() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  /// Sequentially consistent with the calls of continuations, for a thread that announces its sleep
  /// first.
  [[nodiscard]] bool ready() const noexcept {
    return word_.load(std::memory_order_seq_cst) == settled;
  }

  /// Waits, or works meanwhile if this thread has a helper. Returns whether it is settled.
  bool wait_until(clock::time_point deadline);
  /// Waits and does nothing else.
  bool sleep_until(clock::time_point deadline) const noexcept;

  /// `what` is called once, in the thread that settles the future, or here if it is settled
  /// already.
  void attach(continuation& what) noexcept;

  /// Settles with an error. Returns false if it was settled before.
  virtual bool settle_error(error why) = 0;

 protected:
  virtual ~future_base() = default;

  /// Who can do this future's work while a thread from outside waits for it.
  [[nodiscard]] virtual wait_helper* helper() noexcept { return nullptr; }

  /// The caller that gets true writes the value and then publishes it. It holds a reference.
  [[nodiscard]] bool claim() noexcept;
  void publish() noexcept;

 private:
  // The states of word_; a pending or claimed one also says whether somebody sleeps on it.
  static constexpr std::uint32_t watched = 1;
  static constexpr std::uint32_t claimed = 2;
  static constexpr std::uint32_t settled = 4;

  mutable std::atomic<std::uint32_t> word_ = 0;
  std::atomic<std::uint32_t> references_ = 1;
  std::atomic<continuation*> continuations_ = nullptr;  // newest first; `closed` once settled
};

/// An owned reference to a future_base or what derives from it.
template <class State>
class reference {
 public:
  reference() = default;
  /// Takes over a reference that the caller owns.
  explicit reference(State* owned) noexcept : state_(owned) {}
  reference(const reference& other) noexcept : state_(other.state_) {
    if (state_) state_->add_reference();
  }
  reference(reference&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  reference& operator=(reference other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~reference() {
    if (state_) state_->release();
  }

  /// An additional reference to something that others own.
  [[nodiscard]] static reference share(State& state) noexcept {
    state.add_reference();
    return reference(&state);
  }

  [[nodiscard]] State* get() const noexcept { return state_; }
  State* operator->() const noexcept { return state_; }
  State& operator*() const noexcept { return *state_; }
  explicit operator bool() const noexcept { return state_ != nullptr; }

 private:
  State* state_ = nullptr;
};

}  // namespace troupe::actors
