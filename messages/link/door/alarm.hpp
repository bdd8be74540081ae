#pragma once

#include <chrono>

namespace troupe::messages::door {

/// Decides when so many strangers have been refused that the system is to turn further ones away
/// unheard: for a while after the 64th within one second. The first 64 are heard, answered and
/// counted. Pure logic: the clock is an argument. One thread.
class alarm {
 public:
  using clock = std::chrono::steady_clock;
  static constexpr unsigned enough = 64;
  static constexpr std::chrono::seconds within{1};
  static constexpr std::chrono::seconds life{30};

  /// A stranger was refused, pushed out or too slow.
  void refused(clock::time_point now) {
    if (now - since_ >= within) {
      since_ = now;
      count_ = 0;
    }
    if (++count_ >= enough) over_at_ = now + life;
  }

  void expire(clock::time_point now) {
    if (now >= over_at_) over_at_ = clock::time_point::max();
  }
  [[nodiscard]] bool is_raised() const { return over_at_ != clock::time_point::max(); }
  /// When `expire` is to be called at the latest.
  [[nodiscard]] clock::time_point deadline() const { return over_at_; }

 private:
  clock::time_point since_{};
  unsigned count_ = 0;
  clock::time_point over_at_ = clock::time_point::max();
};

}  // namespace troupe::messages::door
