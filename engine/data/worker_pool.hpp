#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace troupe::engine {

/// Threads that a data set owns to decode on. Any thread but a worker may ask for work; the queue
/// holds one job for each that waits, so it is bounded by their number.
class worker_pool {
 public:
  /// Throws std::system_error where the system has no threads left.
  explicit worker_pool(int threads);
  worker_pool(const worker_pool&) = delete;
  worker_pool& operator=(const worker_pool&) = delete;
  /// No `for_each` may be running.
  ~worker_pool();

  /// Runs work(0) .. work(count - 1) on the workers, in any order, and returns when all are done.
  /// `work` must not throw.
  void for_each(std::size_t count, const std::function<void(std::size_t)>& work);

 private:
  struct job {
    const std::function<void(std::size_t)>& work;
    std::size_t count;
    std::size_t begun = 0;
    std::size_t done = 0;
    std::condition_variable finished{};
  };
  void serve(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<job*> jobs_;              // guarded by mutex_, as the jobs are
  std::vector<std::jthread> workers_;  // last: they end before what they use
};

}  // namespace troupe::engine
