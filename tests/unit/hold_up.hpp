#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace troupe::tests {

/// How long other work on the machine has held up a thread of this process while this lives: by how
/// much its longest sleep of a millisecond was too long, which is little on a quiet machine. For
/// bounds on what passes several threads or processes, each of which may be held up as long. To be
/// made when processes have been forked. Any thread.
class hold_up {
 public:
  hold_up() : thread_([this] { look(); }) {}
  hold_up(const hold_up&) = delete;
  hold_up& operator=(const hold_up&) = delete;
  ~hold_up() {
    over_ = true;
    thread_.join();
  }

  /// By how much longer something may take that passes so many threads one after the other; two
  /// seconds at most.
  [[nodiscard]] std::chrono::nanoseconds over(int threads) const {
    return std::min<std::chrono::nanoseconds>(threads * longest_.load(), std::chrono::seconds(2));
  }

 private:
  void look() {
    using clock = std::chrono::steady_clock;
    constexpr std::chrono::nanoseconds sleep = std::chrono::milliseconds(1);
    while (!over_) {
      const auto begin = clock::now();
      std::this_thread::sleep_for(sleep);
      const std::chrono::nanoseconds late = clock::now() - begin - sleep;
      longest_ = std::max(longest_.load(), late);
    }
  }

  std::atomic<std::chrono::nanoseconds> longest_ = std::chrono::nanoseconds(0);
  std::atomic<bool> over_ = false;
  std::thread thread_;  // last: it uses the rest
};

/// What the news of another process's end passes: the link, the node, CAF and the thread that
/// waits.
inline constexpr int threads_of_a_loss = 4;

}  // namespace troupe::tests
