#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace troupe::cluster {

/// Whom nodes count as lost while the trainer does not: two nodes can lose sight of each other, or
/// one stand still just so long that only some notice. They never speak to each other again, so one
/// of them has to go; the trainer alone decides which.
class suspicions_core {
 public:
  using clock = std::chrono::steady_clock;

  struct suspicion {
    std::string by;
    std::string of;
    clock::time_point since;
  };

  /// A node has said, perhaps again, that it counts another one as lost.
  void heard(const std::string& by, const std::string& of, clock::time_point now) {
    const auto is_same = [&](const suspicion& each) { return each.by == by && each.of == of; };
    if (std::ranges::none_of(all_, is_same)) all_.push_back({by, of, now});
  }

  /// The first that is as old as `grace`, between nodes that are both there. What is said of
  /// others, or by others, is forgotten: a node that suspects all others has mostly been cut off
  /// itself, which the trainer notices within the grace.
  [[nodiscard]] std::optional<suspicion> due(const std::vector<std::string>& there,
                                             clock::duration grace, clock::time_point now) {
    const auto is_there = [&](const std::string& node) {
      return std::ranges::find(there, node) != there.end();
    };
    std::erase_if(all_,
                  [&](const suspicion& each) { return !is_there(each.by) || !is_there(each.of); });
    if (all_.empty() || now - all_.front().since < grace) return std::nullopt;
    return all_.front();
  }

 private:
  std::vector<suspicion> all_;  // as they were heard
};

}  // namespace troupe::cluster
