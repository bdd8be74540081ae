#include "tests/fake_nccl/stream.hpp"

#include <chrono>
#include <utility>

namespace troupe::tests::fake_nccl {

stream::stream(int of) : device(of), thread_([this] { run(); }) {}

stream::~stream() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void stream::post(work next) {
  {
    const std::scoped_lock lock(mutex_);
    works_.push_back(std::move(next));
    ++given_;
  }
  changed_.notify_all();
}

std::uint64_t stream::mark() {
  const std::scoped_lock lock(mutex_);
  return given_;
}

bool stream::reached(std::uint64_t mark) {
  const std::scoped_lock lock(mutex_);
  return done_ >= mark;
}

void stream::run() {
  std::unique_lock lock(mutex_);
  for (int idle = 0;;) {
    changed_.wait(lock, [this] { return closing_ || !works_.empty(); });
    if (closing_) return;
    work& oldest = works_.front();  // others only push behind it
    lock.unlock();
    const bool over = oldest();
    lock.lock();
    if (over) {
      works_.pop_front();
      ++done_;
      idle = 0;
    } else if (++idle > 50) {  // gives the core to the rank that it waits for
      changed_.wait_for(lock, std::chrono::microseconds(100), [this] { return closing_; });
    }
  }
}

}  // namespace troupe::tests::fake_nccl
