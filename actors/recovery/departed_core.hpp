#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace troupe::actors {

/// Senders whose messages are ignored: they were lost and replaced, though they may still be alive.
/// A pure state machine, of one receiver. `Same` tells whether two are one, for senders themselves
/// are never used again.
template <class Sender, class Same = std::equal_to<>>
class departed_core {
 public:
  /// Another sender has taken its place.
  void replaced(Sender lost) { all_.push_back(std::move(lost)); }

  template <class Other>
  [[nodiscard]] bool has_departed(const Other& sender) const {
    return std::ranges::any_of(all_, [&](const Sender& each) { return Same()(each, sender); });
  }

 private:
  std::vector<Sender> all_;
};

}  // namespace troupe::actors
