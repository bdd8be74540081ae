#pragma once

#include <atomic>
#include <forward_list>
#include <string>
#include <utility>

namespace troupe::actors {

/// Where a node listens, which any thread may read without a lock while it changes.
class listening_address {
 public:
  /// The text lives as long as this. Not before the first `change`.
  [[nodiscard]] const std::string& now() const noexcept {
    return *now_.load(std::memory_order_acquire);
  }

  /// By one thread at a time. The addresses of before stay, for they may be being read.
  void change(std::string address) {
    all_.push_front(std::move(address));
    now_.store(&all_.front(), std::memory_order_release);
  }

 private:
  std::forward_list<std::string> all_;  // the last one first
  std::atomic<const std::string*> now_ = nullptr;
};

}  // namespace troupe::actors
