#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "messages/link/seal/handshake.hpp"

namespace troupe::messages {

/// The share that an accepting side shows: the same one to everybody who connects within a second,
/// since computing it is the largest cost of a stranger. It is wiped when that second is over. Pure
/// logic: the clock is an argument. One thread.
class shown_share {
 public:
  using clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds life{1};

  /// The share of this time; `make` makes the next one.
  [[nodiscard]] key_share at(clock::time_point now, const std::function<key_share()>& make) {
    expire(now);
    if (!share_) {
      share_.emplace(make());
      over_at_ = now + life;
    }
    return *share_;
  }

  void expire(clock::time_point now) {
    if (now < over_at_) return;
    share_.reset();
    over_at_ = clock::time_point::max();
  }
  /// When `expire` is to be called at the latest.
  [[nodiscard]] clock::time_point deadline() const { return over_at_; }

 private:
  std::optional<key_share> share_;
  clock::time_point over_at_ = clock::time_point::max();
};

}  // namespace troupe::messages
