#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "messages/base/ids.hpp"

namespace troupe::messages {

/// The connections that came in and have not proved themselves, in the order in which they came.
/// Pure logic. One thread.
class lobby {
 public:
  void enter(peer_id who, const std::string& host) {
    const auto from = hosts_.try_emplace(host, 0).first;
    ++from->second;
    waiting_.push_back({who, from});
  }

  /// Has no effect for a connection that is not here.
  void leave(peer_id who) {
    const auto found = std::ranges::find(waiting_, who, &guest::id);
    if (found == waiting_.end()) return;
    if (--found->from->second == 0) hosts_.erase(found->from);
    waiting_.erase(found);
  }

  /// The connection that is to make room for another: the oldest of the host that has the most
  /// here.
  [[nodiscard]] std::optional<peer_id> next_out() const {
    const auto fewer = [](const guest& a, const guest& b) {
      return a.from->second < b.from->second;
    };
    const auto found = std::ranges::max_element(waiting_, fewer);
    return found == waiting_.end() ? std::nullopt : std::optional(found->id);
  }

 private:
  using hosts = std::map<std::string, std::size_t>;
  struct guest {
    peer_id id;
    hosts::iterator from;
  };

  hosts hosts_;  // and how many are here of each
  std::deque<guest> waiting_;
};

}  // namespace troupe::messages
