#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace troupe::engine {

/// The one thread a stage computes on, so that a long forward never holds up a scheduler. Tasks run
/// in the order they were posted, and autograd's backward in this thread, whatever the device. The
/// destructor finishes what was posted and joins.
class work_thread {
 public:
  /// `intra_op_threads`: how many threads one operator may use on this thread, at least 1. `name`:
  /// shown by debuggers and profilers (the first 15 characters). `fill_gap` is called repeatedly in
  /// a gap (see `open_gap`) until it returns false, which means that it had nothing to do. `failed`
  /// is called on this thread with what a task or `fill_gap` threw, and must not throw itself;
  /// after that tasks still run, but gaps are no longer filled. Without `failed`, tasks and
  /// `fill_gap` must not throw. Throws std::system_error if no thread can be started.
  work_thread(const std::string& name, int intra_op_threads, std::function<bool()> fill_gap = {},
              std::function<void(const std::exception&)> failed = {});
  work_thread(const work_thread&) = delete;
  work_thread& operator=(const work_thread&) = delete;
  ~work_thread();

  /// From any thread.
  void post(std::function<void()> task);

  /// From any thread. There is nothing else to do now, so `fill_gap` may run until the next `post`.
  /// An empty queue alone is no gap, since a task may be about to be posted.
  void open_gap();

 private:
  void run(int intra_op_threads);
  void fill_gap(std::unique_lock<std::mutex>& held);
  template <class Body>
  bool guarded(const Body& body) const;

  std::function<bool()> fill_gap_;
  const std::function<void(const std::exception&)> failed_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> tasks_;
  bool in_gap_ = false;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace troupe::engine
