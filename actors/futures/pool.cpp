#include "actors/futures/pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <thread>

#include "actors/futures/futex.hpp"
#include "actors/futures/work_deque.hpp"

namespace troupe::actors {
namespace {

using clock = future_base::clock;

/// How long a thread looks for work before it sleeps: about what a sleep and a wake would cost.
constexpr auto search_time = std::chrono::microseconds(20);
/// Tasks that an outside thread may have on its stack, one waiting for the next.
constexpr int outside_depth = 32;

int& depth_outside() noexcept {
  thread_local int depth = 0;
  return depth;
}

}  // namespace

/// Where one thread sleeps. Shared, because a future may wake it after it has gone on.
struct pool::sleeper {
  std::atomic<std::uint32_t> asleep = 0;

  void wake() {
    if (asleep.exchange(0, std::memory_order_seq_cst) != 0) futex_wake_all(asleep);
  }
};

struct pool::worker {
  worker(pool& of, std::size_t index) : home(of), number(index) {}
  ~worker() {
    if (started) pthread_join(thread, nullptr);
  }

  void start(std::size_t stack_bytes) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack_bytes);
    const int problem = pthread_create(
        &thread, &attributes,
        [](void* self) -> void* {
          auto& me = *static_cast<worker*>(self);
          me.home.run_worker(me);
          return nullptr;
        },
        this);
    pthread_attr_destroy(&attributes);
    if (problem != 0)
      throw std::system_error(problem, std::generic_category(), "a pool's thread cannot start");
    started = true;
  }

  pool& home;
  const std::size_t number;
  work_deque<pool_task> queue;
  std::shared_ptr<sleeper> bed = std::make_shared<sleeper>();
  pthread_t thread{};
  bool started = false;
};

/// Wakes a thread of the pool when the future is settled for which it waits.
class pool::waker final : public continuation {
 public:
  explicit waker(std::shared_ptr<sleeper> bed) : bed_(std::move(bed)) {}
  void settled(future_base&) noexcept override {
    bed_->wake();
    delete this;
  }

 private:
  std::shared_ptr<sleeper> bed_;
};

pool::pool(pool_settings settings) : settings_(std::move(settings)) {
  for (std::size_t i = 0; i < std::max(settings_.threads, 1U); ++i)
    workers_.push_back(std::make_unique<worker>(*this, i));
  try {
    for (auto& each : workers_) each->start(settings_.stack_bytes);
  } catch (const std::system_error&) {
    end_workers();  // those that were started
    throw;
  }
}

void pool::end_workers() {
  stopping_.store(true, std::memory_order_seq_cst);
  for (auto& each : workers_) each->bed->wake();
  for (auto& each : workers_) {
    if (each->started) pthread_join(each->thread, nullptr);
    each->started = false;
  }
}

pool::~pool() {
  end_workers();
  for (auto& each : workers_) {
    while (auto* task = each->queue.pop()) task->refuse();
  }
  while (auto* task = take_inbound(false)) task->refuse();
}

pool::worker*& pool::this_worker() noexcept {
  thread_local worker* mine = nullptr;
  return mine;
}

void pool::submit(pool_task& task) {
  auto* const me = this_worker();
  if (me && &me->home == this) {
    me->queue.push(&task);
  } else {
    const std::scoped_lock lock(inbound_mutex_);
    inbound_.push_back(&task);
    inbound_count_.store(inbound_.size(), std::memory_order_seq_cst);
  }
  // A thread that searches finds it; the last one to stop searching looks again before it sleeps.
  if (searching_.load(std::memory_order_seq_cst) == 0) wake_one();
}

void pool::wake_one() {
  if (sleeping_.load(std::memory_order_seq_cst) == 0) return;
  const std::scoped_lock lock(sleepers_mutex_);
  if (sleepers_.empty()) return;
  sleepers_.back()->wake();
  sleepers_.pop_back();
  sleeping_.store(sleepers_.size(), std::memory_order_seq_cst);
}

pool_task* pool::take_inbound(bool newest) {
  if (inbound_count_.load(std::memory_order_seq_cst) == 0) return nullptr;
  const std::scoped_lock lock(inbound_mutex_);
  if (inbound_.empty()) return nullptr;
  auto* const task = newest ? inbound_.back() : inbound_.front();
  newest ? inbound_.pop_back() : inbound_.pop_front();
  inbound_count_.store(inbound_.size(), std::memory_order_seq_cst);
  return task;
}

pool_task* pool::steal(const worker* me) {
  const auto count = workers_.size();
  const auto first = me ? me->number + 1 : 0;
  for (std::size_t i = 0; i < count; ++i) {
    auto& other = *workers_[(first + i) % count];
    if (&other == me) continue;
    if (auto* task = other.queue.steal()) return task;
  }
  return nullptr;
}

pool_task* pool::next_for(worker& me) {
  if (auto* task = me.queue.pop()) return task;
  if (auto* task = take_inbound(false)) return task;
  return steal(&me);
}

bool pool::any_work() const {
  if (inbound_count_.load(std::memory_order_seq_cst) > 0) return true;
  return std::ranges::any_of(workers_, [](const auto& each) { return !each->queue.empty(); });
}

pool_task* pool::search(worker& me, const future_base* awaited) {
  searching_.fetch_add(1, std::memory_order_seq_cst);
  pool_task* found = nullptr;
  const auto until = clock::now() + search_time;
  do {
    found = next_for(me);
    if (found || (awaited && awaited->ready()) || stopping_.load(std::memory_order_relaxed)) break;
    std::this_thread::yield();
  } while (clock::now() < until);
  // Who searched last hands the search on when there may be more to find.
  if (searching_.fetch_sub(1, std::memory_order_seq_cst) == 1 && any_work()) wake_one();
  return found;
}

void pool::sleep(worker& me, const future_base* awaited, clock::time_point deadline) {
  auto* const bed = me.bed.get();
  bed->asleep.store(1, std::memory_order_seq_cst);
  {
    const std::scoped_lock lock(sleepers_mutex_);
    sleepers_.push_back(bed);
    sleeping_.store(sleepers_.size(), std::memory_order_seq_cst);
  }
  const bool stop = stopping_.load(std::memory_order_seq_cst) && !awaited;
  if (!stop && !any_work() && !(awaited && awaited->ready())) {
    while (bed->asleep.load(std::memory_order_acquire) != 0) {
      futex_wait(bed->asleep, 1, deadline);
      if (deadline != clock::time_point::max() && clock::now() >= deadline) break;
    }
  }
  bed->asleep.store(0, std::memory_order_relaxed);
  const std::scoped_lock lock(sleepers_mutex_);
  std::erase(sleepers_, bed);
  sleeping_.store(sleepers_.size(), std::memory_order_seq_cst);
}

void pool::run_worker(worker& me) {
  pthread_setname_np(pthread_self(), settings_.name.substr(0, 15).c_str());
  this_worker() = &me;
  helper_of_this_thread() = this;
  if (settings_.on_thread_start) settings_.on_thread_start();
  while (!stopping_.load(std::memory_order_acquire)) {
    auto* task = next_for(me);
    if (!task) task = search(me, nullptr);
    if (task) {
      task->run();
    } else {
      sleep(me, nullptr, clock::time_point::max());
    }
  }
}

bool pool::help_until(future_base& awaited, clock::time_point deadline) {
  auto* const me = this_worker();
  if (me && &me->home == this) return help_inside(*me, awaited, deadline);
  return help_outside(awaited, deadline);
}

bool pool::help_inside(worker& me, future_base& awaited, clock::time_point deadline) {
  const bool bounded = deadline != clock::time_point::max();
  bool watched = false;
  while (!awaited.ready()) {
    if (bounded && clock::now() >= deadline) break;
    auto* task = next_for(me);
    if (!task) task = search(me, &awaited);
    if (task) {
      task->run();
      continue;
    }
    if (!std::exchange(watched, true)) awaited.attach(*new waker(me.bed));
    sleep(me, &awaited, deadline);
  }
  // The wake may have been meant for work that came, and we go on with our own.
  if (watched && any_work()) wake_one();
  return awaited.ready();
}

bool pool::help_outside(future_base& awaited, clock::time_point deadline) {
  const bool bounded = deadline != clock::time_point::max();
  auto& depth = depth_outside();
  while (depth < outside_depth && !awaited.ready()) {
    if (bounded && clock::now() >= deadline) return false;
    auto* task = take_inbound(true);
    if (!task) task = steal(nullptr);
    if (!task) break;
    ++depth;
    task->run();
    --depth;
  }
  return awaited.sleep_until(deadline);
}

}  // namespace troupe::actors
