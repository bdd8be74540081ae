#pragma once

#include <caf/actor_control_block.hpp>
#include <caf/fwd.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "messages/base/ids.hpp"

namespace troupe::actors {

/// A node that writes to us, and the handles of its actors that did.
struct correspondent {
  std::string name;
  std::unordered_map<caf::actor_id, caf::strong_actor_ptr> known;
  bool heard = false;  // since the last tick, past the core
};

/// The nodes that write to this one, by name and by connection. For one thread.
class correspondents {
 public:
  [[nodiscard]] correspondent& of(const std::string& name) {
    auto& found = all_[name];
    if (found.name.empty()) found.name = name;
    return found;
  }

  /// Null before the node at the connection's other end has greeted.
  [[nodiscard]] correspondent* find(peer_id peer) const {
    const auto found = greeted_.find(peer.value);
    return found == greeted_.end() ? nullptr : found->second;
  }

  void greeted(peer_id peer, const std::string& name) { greeted_.emplace(peer.value, &of(name)); }

  /// A connection is gone, and with it the handles of the actors behind it.
  void disconnected(peer_id peer) {
    if (const auto known = greeted_.extract(peer.value)) known.mapped()->known.clear();
  }

  /// A node is gone: its connections count as those of nodes that have not greeted.
  void lost(const std::string& name) {
    std::erase_if(greeted_, [&](const auto& entry) { return entry.second->name == name; });
  }

  /// Who has been heard since this was asked last.
  [[nodiscard]] std::vector<std::string> take_heard() {
    std::vector<std::string> heard;
    for (auto& [name, who] : all_) {
      if (std::exchange(who.heard, false)) heard.push_back(name);
    }
    return heard;
  }

 private:
  std::map<std::string, correspondent> all_;
  std::unordered_map<std::uint64_t, correspondent*> greeted_;  // by peer_id
};

}  // namespace troupe::actors
