#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace troupe::tests::fake_nccl {

/// What stands for a CUDA stream: work in order, on a thread of its own.
class stream {
 public:
  /// Called again and again until it returns true: it is done.
  using work = std::function<bool()>;

  explicit stream(int device);
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
  /// What has not been done by then is dropped.
  ~stream();

  void post(work next);
  /// How much it has been given so far.
  [[nodiscard]] std::uint64_t mark();
  [[nodiscard]] bool reached(std::uint64_t mark);

  const int device;

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<work> works_;
  std::uint64_t given_ = 0;
  std::uint64_t done_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace troupe::tests::fake_nccl
