#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/remote/progress_core.hpp"
#include "engine/model/activity.hpp"
#include "messages/frame.hpp"

namespace troupe::actors {

/// What the threads of a node are doing, for its heartbeats. Shared by the node and whoever makes
/// such threads; safe to use from any thread. The threads themselves take no lock (see
/// engine::activity), so a thread that hangs does not keep a heartbeat from being sent.
class progress_board {
 public:
  /// `interval`: between two heartbeats.
  explicit progress_board(std::chrono::milliseconds interval) : interval_(interval) {}

  /// From now on heartbeats report this thread, as long as somebody else holds `what`. `thread` is
  /// its name within the node.
  void watch(std::string thread, std::shared_ptr<const engine::activity> what);

  /// For some seconds from now on heartbeats report that this node counts another one as lost.
  void note_lost(std::string node);

  /// What the next heartbeat is to carry: an element for each thread, and for each node that was
  /// lost recently. Called once per interval.
  [[nodiscard]] std::vector<messages::element> tell(std::chrono::steady_clock::time_point now);

 private:
  struct watched {
    std::string thread;
    std::shared_ptr<const engine::activity> what;
    work_timer timer;
  };

  struct lost_node {
    std::string name;
    int times = 0;  // that it is still to be told
  };

  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::vector<watched> threads_;
  std::vector<lost_node> lost_;
};

}  // namespace troupe::actors
