#include "engine/data/worker_pool.hpp"

namespace troupe::engine {

worker_pool::worker_pool(int threads) {
  for (int i = 0; i < threads; ++i)
    workers_.emplace_back([this](const std::stop_token& stop) { serve(stop); });
}

worker_pool::~worker_pool() = default;

void worker_pool::for_each(std::size_t count, const std::function<void(std::size_t)>& work) {
  if (count == 0) return;
  job ordered{work, count};
  std::unique_lock lock(mutex_);
  jobs_.push_back(&ordered);
  wake_.notify_all();
  ordered.finished.wait(lock, [&ordered] { return ordered.done == ordered.count; });
}

void worker_pool::serve(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (wake_.wait(lock, stop, [this] { return !jobs_.empty(); })) {
    auto& current = *jobs_.front();
    const auto index = current.begun++;
    if (current.begun == current.count) jobs_.pop_front();
    lock.unlock();
    current.work(index);
    lock.lock();
    // Under the lock: the job is gone as soon as its owner sees the last one done.
    if (++current.done == current.count) current.finished.notify_one();
  }
}

}  // namespace troupe::engine
