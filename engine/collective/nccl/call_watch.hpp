#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace troupe::engine::nccl {

/// Watches one thread's calls into a library that may never return. A thread of its own looks, a
/// few times within the shortest limit; a call that is past its limit is reported once.
class call_watch {
 public:
  using clock = std::chrono::steady_clock;

  /// `look_each`: how often to look. `hung` is told, on the watch's thread, which call has not
  /// returned and for how long; it may end the process. Throws std::system_error where no thread
  /// can be started.
  call_watch(clock::duration look_each,
             std::function<void(const char* call, clock::duration since)> hung);
  call_watch(const call_watch&) = delete;
  call_watch& operator=(const call_watch&) = delete;
  ~call_watch();

  /// Makes the call. Of one thread, without nesting. `name` outlives the watch.
  template <class Body>
  auto guard(const char* name, clock::duration limit, const Body& body) {
    const armed now(*this, name, limit);
    return body();
  }

 private:
  struct armed {
    armed(call_watch& watch, const char* name, clock::duration limit);
    ~armed();
    call_watch& watch;
  };
  void run(clock::duration look_each);
  void look();

  const std::function<void(const char*, clock::duration)> hung_;
  std::atomic<const char*> call_ =
      nullptr;  // set last, cleared first: null while nothing is called
  std::atomic<clock::rep> began_ = 0;
  std::atomic<clock::rep> limit_ = 0;
  std::atomic<unsigned> calls_ = 0;
  unsigned reported_ = 0;  // the watch's thread only
  std::mutex mutex_;
  std::condition_variable closed_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace troupe::engine::nccl
