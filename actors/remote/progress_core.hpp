#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/model/usual_times.hpp"
#include "messages/base/error.hpp"
#include "messages/frame.hpp"

namespace troupe::actors {

/// What one thread of a node is doing, as the node's heartbeats report it.
struct progress_report {
  std::string thread;       ///< Of which thread: "arithmetic", "optimizer".
  std::uint64_t count = 0;  ///< Begins and ends of work so far: the same work has the same count.
  std::optional<engine::work_kind> kind = {};  ///< Nothing: it waits for work.
  std::string what = {};                       ///< "forward of micro-batch 3, step 17"
  std::string place = {};                      ///< "layer layer3.0", where it is known.
  double running_s = 0;                        ///< How long the node has seen it at this work.
  std::optional<double> usual_s = {};  ///< The median of the same work before; nothing: none.
  double longest_s = 0;                ///< See engine::usual_times::longest.

  bool operator==(const progress_report&) const = default;
};

/// As it travels in a heartbeat.
[[nodiscard]] messages::element to_element(const progress_report& report);
/// Nothing if it is not such a report.
[[nodiscard]] std::optional<progress_report> to_report(const messages::element& in);

/// A report in a node's heartbeats that it counts another node as lost, which others may not.
struct loss_report {
  std::string node;

  bool operator==(const loss_report&) const = default;
};

[[nodiscard]] messages::element to_element(const loss_report& report);
/// Nothing: it is no such report.
[[nodiscard]] std::optional<loss_report> to_loss(const messages::element& in);

/// Counts how long a thread has been doing one piece of work, on its own node. Pure: the time is an
/// argument. A tick adds the time since the last one, but at most two intervals: while this process
/// stood still, so did the work. So stopping a run (Ctrl-Z) or its machine makes nothing late.
class work_timer {
 public:
  using clock = std::chrono::steady_clock;

  explicit work_timer(clock::duration interval) : interval_(interval) {}

  /// To be called at every tick. `count`: the number of the work that the thread is doing; returns
  /// how long it has been doing it.
  clock::duration tick(std::uint64_t count, clock::time_point now);

 private:
  clock::duration interval_;
  std::uint64_t count_ = 0;
  std::optional<clock::time_point> last_;
  clock::duration running_{0};
};

/// When a piece of work counts as slow, and when as hung.
struct progress_settings {
  using seconds = std::chrono::duration<double>;

  /// The least time to be called slow; 0: nothing is.
  seconds slow_after{5};
  /// Beyond it a node counts as lost; 0: never.
  seconds hang_timeout{0};
  /// What each node's work was predicted to take, in seconds.
  std::map<std::string, std::map<engine::work_kind, double>> predicted = {};
};

/// Decides whether nodes that are alive make progress: it reports work that takes far longer than
/// usual, and counts a node as hung whose work does not end. Pure: reports come in, effects go out;
/// no clock, since reports say how long.
///
/// Work is slow after the longest of `slow_after`, ten times its usual time or prediction, and
/// three times the node's longest work. Work that was not seen before (the first step, a new shape)
/// allocates memory and prepares kernels: it gets six times `slow_after`.
class progress_core {
 public:
  struct slow {  ///< To be said; once for a piece of work, again whenever its time has doubled.
    std::string node;
    std::string text;
  };
  struct went_on {  ///< What was slow has ended.
    std::string node;
    std::string text;
  };
  struct hung {  ///< Once; the node is observed no more. timed_out.
    std::string node;
    error why;
  };
  using effect = std::variant<slow, went_on, hung>;
  using effects = std::vector<effect>;

  explicit progress_core(progress_settings settings = {}) : settings_(std::move(settings)) {}

  /// A heartbeat's report about one thread of a node.
  effects heard(const std::string& node, const progress_report& report);

 private:
  struct thread_state {
    std::uint64_t count = 0;
    double say_after_s = 0;  // 0: nothing was said
    double running_s = 0;
    std::string what;
  };

  [[nodiscard]] double slow_limit(const std::string& node, const progress_report& report) const;

  const progress_settings settings_;
  std::map<std::pair<std::string, std::string>, thread_state> threads_;  // of a node
  std::set<std::string> hung_;                                           // nodes, never forgotten
};

}  // namespace troupe::actors
