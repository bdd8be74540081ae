#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace troupe::actors {

/// Calls a function once an interval, on a thread of its own that sleeps in between. After a pause
/// of the thread or the machine it goes on; it does not catch up. A resource: the destructor waits
/// for a call under way, so not to be destroyed from one.
class ticker {
 public:
  ticker(std::chrono::milliseconds interval, std::function<void()> tick);
  ticker(const ticker&) = delete;
  ticker& operator=(const ticker&) = delete;
  ~ticker();

 private:
  void run();

  const std::chrono::milliseconds interval_;
  const std::function<void()> tick_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace troupe::actors
