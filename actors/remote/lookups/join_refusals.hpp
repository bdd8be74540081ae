#pragma once

#include <cstdint>
#include <map>

#include "messages/base/error.hpp"
#include "messages/base/ids.hpp"

namespace troupe::actors {

/// Why connections ended while a node joins another: one that refuses it closes its connection, and
/// the reason says why.
class join_refusals {
 public:
  void begin() {
    is_joining_ = true;
    by_peer_.clear();
  }
  void end() { is_joining_ = false; }

  void disconnected(peer_id peer, const error& why) {
    if (is_joining_) by_peer_.emplace(peer.value, why);
  }

  /// Null: that connection has not gone.
  [[nodiscard]] const error* find(peer_id peer) const {
    const auto found = by_peer_.find(peer.value);
    return found == by_peer_.end() ? nullptr : &found->second;
  }

 private:
  bool is_joining_ = false;
  std::map<std::uint64_t, error> by_peer_;
};

}  // namespace troupe::actors
