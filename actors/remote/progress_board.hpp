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

/// What the threads of a node are at, for its heartbeats. Shared by whoever makes such threads and
/// the node; safe to use from any thread. The threads themselves take no lock (see
/// engine::activity), so none that hangs keeps a heartbeat from going out.
class progress_board {
 public:
  /// `interval`: between two heartbeats.
  explicit progress_board(std::chrono::milliseconds interval) : interval_(interval) {}

  /// From here on heartbeats tell of a thread, as long as somebody else has `what`. `thread` is its
  /// name within the node.
  void watch(std::string thread, std::shared_ptr<const engine::activity> what);

  /// From here on heartbeats tell, for some seconds, that this node counts another one as lost.
  void note_lost(std::string node);

  /// What the next heartbeat is to tell: an element for each thread, and for each node that was
  /// lost of late. Called once an interval.
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
