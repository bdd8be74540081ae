#include "engine/collective/nccl/call_watch.hpp"

#include <pthread.h>

#include <utility>

namespace troupe::engine::nccl {

call_watch::armed::armed(call_watch& of, const char* name, clock::duration limit) : watch(of) {
  ++watch.calls_;  // first, so that `look` sees that what it reads is of two calls
  watch.began_ = clock::now().time_since_epoch().count();
  watch.limit_ = limit.count();
  watch.call_ = name;
}

call_watch::armed::~armed() {
  watch.call_ = nullptr;
}

call_watch::call_watch(clock::duration look_each,
                       std::function<void(const char*, clock::duration)> hung)
    : hung_(std::move(hung)), thread_([this, look_each] { run(look_each); }) {
  pthread_setname_np(thread_.native_handle(), "nccl-watch");
}

call_watch::~call_watch() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  closed_.notify_one();
  thread_.join();
}

void call_watch::look() {
  const unsigned before = calls_;
  const char* const call = call_;
  const clock::duration since = clock::now().time_since_epoch() - clock::duration(began_.load());
  if (call == nullptr || since <= clock::duration(limit_.load()) || calls_ != before) return;
  if (std::exchange(reported_, before) != before) hung_(call, since);
}

void call_watch::run(clock::duration look_each) {
  std::unique_lock lock(mutex_);
  while (!closed_.wait_for(lock, look_each, [this] { return closing_; })) look();
}

}  // namespace troupe::engine::nccl
