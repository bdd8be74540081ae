#include "engine/stage/work_thread.hpp"

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <pthread.h>

#include <utility>

namespace troupe::engine {

work_thread::work_thread(const std::string& name, int intra_op_threads,
                         std::function<bool()> fill_gap,
                         std::function<void(const std::exception&)> failed)
    : fill_gap_(std::move(fill_gap)),
      failed_(std::move(failed)),
      thread_([this, intra_op_threads] { run(intra_op_threads); }) {
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

work_thread::~work_thread() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  posted_.notify_one();
  thread_.join();
}

void work_thread::post(std::function<void()> task) {
  {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    in_gap_ = false;
  }
  posted_.notify_one();
}

void work_thread::open_gap() {
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(in_gap_, true)) return;
  }
  posted_.notify_one();
}

void work_thread::fill_gap(std::unique_lock<std::mutex>& held) {
  held.unlock();
  bool did_some = false;
  if (fill_gap_ && !guarded([&] { did_some = fill_gap_(); })) fill_gap_ = nullptr;
  held.lock();
  if (!did_some) in_gap_ = false;
}

/// False when it threw.
template <class Body>
bool work_thread::guarded(const Body& body) const {
  if (!failed_) {
    body();
    return true;
  }
  try {
    body();
    return true;
  } catch (const std::exception& problem) {
    failed_(problem);
    return false;
  }
}

void work_thread::run(int intra_op_threads) {
  guarded([&] {
    // A thread's first look at the setting takes the process's last one; set ours after that.
    static_cast<void>(at::get_num_threads());
    at::set_num_threads(intra_op_threads);
    // Autograd has a thread of its own for each device, which knows nothing of what this thread
    // does meanwhile: which weight gradients are to wait, whose the memory is. A backward of this
    // thread stays in it.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  });
  std::unique_lock lock(mutex_);
  for (;;) {
    posted_.wait(lock, [this] { return closing_ || in_gap_ || !tasks_.empty(); });
    if (tasks_.empty() && closing_) return;
    if (tasks_.empty()) {
      fill_gap(lock);
      continue;
    }
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    guarded([&] {
      task();
      task = nullptr;
    });
    task = nullptr;
    lock.lock();
  }
}

}  // namespace troupe::engine
