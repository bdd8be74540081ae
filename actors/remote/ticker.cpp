#include "actors/remote/ticker.hpp"

#include <pthread.h>

#include <utility>

namespace troupe::actors {

ticker::ticker(std::chrono::milliseconds interval, std::function<void()> tick)
    : interval_(interval), tick_(std::move(tick)), thread_([this] { run(); }) {}

ticker::~ticker() {
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void ticker::run() {
  using clock = std::chrono::steady_clock;
  pthread_setname_np(pthread_self(), "troupe-ticker");
  auto next = clock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_until(lock, next, [this] { return stopped_; })) {
    lock.unlock();
    tick_();
    lock.lock();
    next += interval_;
    if (const auto now = clock::now(); next < now) next = now + interval_;
  }
}

}  // namespace troupe::actors
