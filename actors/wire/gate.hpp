#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

namespace troupe::actors {

/// Stands before a resource that others call from their own threads: lets them in until it closes,
/// and closes only when nobody is inside. (After Seastar's gate.)
class gate {
 public:
  /// Being inside; leaving is its destructor.
  class pass {
   public:
    explicit pass(gate& of) : of_(&of) {}
    pass(pass&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
    pass& operator=(pass&&) = delete;
    ~pass() {
      if (of_) of_->leave();
    }

   private:
    gate* of_;
  };

  /// nullopt once the gate has been closed.
  [[nodiscard]] std::optional<pass> enter() {
    if (inside_.fetch_add(1) & closed) {
      leave();
      return std::nullopt;
    }
    return pass(*this);
  }

  /// Lets nobody in any more and waits until all have left. Not from inside.
  void close() {
    auto now = inside_.fetch_or(closed) | closed;
    while (now != closed) {
      inside_.wait(now);
      now = inside_.load();
    }
  }

 private:
  static constexpr std::uint32_t closed = std::uint32_t{1} << 31;

  void leave() {
    if (inside_.fetch_sub(1) == (closed | 1)) inside_.notify_all();
  }

  std::atomic<std::uint32_t> inside_ = 0;
};

}  // namespace troupe::actors
