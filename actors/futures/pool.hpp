#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/futures/future.hpp"

namespace troupe::actors {

/// A piece of work in a pool's queue. Reference-counted; the queue holds one reference.
class pool_task {
 public:
  /// Does the work and releases the queue's reference.
  virtual void run() noexcept = 0;
  /// Refuses the work and releases the queue's reference.
  virtual void refuse() noexcept = 0;

 protected:
  ~pool_task() = default;
};

struct pool_settings {
  std::string name = "pool";  ///< Of its threads, at most 15 characters.
  unsigned threads = 1;
  /// Virtual memory for each thread's stack: a task that waits for a task it forked, which waits
  /// for one it forked, and so on, may all be on one stack.
  std::size_t stack_bytes = std::size_t{256} << 20;
  bool helped_by_waiters = true;               ///< Outside threads work while they wait.
  std::function<void()> on_thread_start = {};  ///< In each of its threads, first.
};

/// Threads that do forked work, with a work-stealing scheduler: a thread takes what it forked last
/// from its own queue, then work from outside, then the oldest task of another thread. A thread of
/// the pool that waits for a future does other work meanwhile, so tasks that wait for tasks they
/// forked never deadlock, at any depth, even on one thread. (They may if tasks pass futures to each
/// other and wait in a circle, or through work that lies beneath them on a stack.) An outside
/// thread that waits for forked work helps too (unless the settings say no), but only as deep as
/// its own stack permits; then it sleeps and is woken directly. Threads with nothing to do sleep.
///
/// A resource: its destructor lets running tasks finish, and fails those that have not begun with
/// errc::cancelled. No other thread may do its work meanwhile by waiting for its futures. Safe from
/// any thread.
class pool final : private wait_helper {
 public:
  explicit pool(pool_settings settings);
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;
  ~pool();

  /// Starts `fn(args...)`. The future gets its value, or the error of the result<T> that it
  /// returns; an exception becomes errc::handler_failed with the exception's text. Arguments are
  /// stored as given (wrap a reference in std::ref).
  template <class F, class... Args>
  auto fork(F fn, Args... args) {
    return start([fn = std::move(fn), args = std::tuple(std::move(args)...)]() mutable {
      return std::apply(fn, std::move(args));
    });
  }
  template <class F>
  auto fork(F fn) {
    return start(std::move(fn));
  }

  /// Queues work that nobody waits for.
  template <class F>
  void post(F fn) {
    (void)start(std::move(fn));
  }

 private:
  struct sleeper;
  struct worker;
  class waker;
  template <class F>
  class forked;

  template <class F>
  auto start(F fn) {
    using R = typename detail::unwrapped<std::remove_cvref_t<std::invoke_result_t<F&>>>::type;
    auto* const task = new forked<F>(*this, std::move(fn));
    future<R> handle(reference<future_state<R>>::share(*task));
    submit(*task);
    return handle;
  }

  bool help_until(future_base& awaited, future_base::clock::time_point deadline) override;
  bool help_inside(worker& me, future_base& awaited, future_base::clock::time_point deadline);
  bool help_outside(future_base& awaited, future_base::clock::time_point deadline);

  void submit(pool_task& task);
  void run_worker(worker& me);
  [[nodiscard]] pool_task* next_for(worker& me);
  [[nodiscard]] pool_task* take_inbound(bool newest);
  [[nodiscard]] pool_task* steal(const worker* me);
  [[nodiscard]] pool_task* search(worker& me, const future_base* awaited);
  [[nodiscard]] bool any_work() const;
  void sleep(worker& me, const future_base* awaited, future_base::clock::time_point deadline);
  void end_workers();
  void wake_one();
  static worker*& this_worker() noexcept;

  const pool_settings settings_;
  std::vector<std::unique_ptr<worker>> workers_;
  std::atomic<bool> stopping_ = false;

  std::mutex inbound_mutex_;
  std::deque<pool_task*> inbound_;  // from threads that are not ours
  std::atomic<std::size_t> inbound_count_ = 0;

  std::atomic<int> searching_ = 0;  // awake and about to find whatever is queued
  std::mutex sleepers_mutex_;
  std::vector<sleeper*> sleepers_;
  std::atomic<std::size_t> sleeping_ = 0;
};

/// The state of a forked future and its work: one allocation.
template <class F>
class pool::forked final
    : public future_state<
          typename detail::unwrapped<std::remove_cvref_t<std::invoke_result_t<F&>>>::type>,
      public pool_task {
 public:
  using value_type =
      typename detail::unwrapped<std::remove_cvref_t<std::invoke_result_t<F&>>>::type;

  forked(pool& home, F fn) : home_(home), fn_(std::move(fn)) {}

  void run() noexcept override {
    if (!this->ready()) {
      auto outcome = detail::call<value_type>(*fn_);
      fn_.reset();  // what it holds may be waited for
      this->settle(std::move(outcome));
    }
    this->release();
  }
  void refuse() noexcept override {
    this->settle_error({errc::cancelled, "the pool ended before the work began"});
    this->release();
  }

 private:
  wait_helper* helper() noexcept override {
    return home_.settings_.helped_by_waiters ? &home_ : nullptr;
  }

  pool& home_;
  std::optional<F> fn_;
};

/// Waits for `of`; the same as `of.get()`.
template <class T>
result<T> wait(const future<T>& of) {
  return of.get();
}

}  // namespace troupe::actors
