#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "actors/base/process_identity.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

/// How soon silence counts as death. All of these are times during which the observer itself ran.
struct liveness_settings {
  /// Between two heartbeats, and between two looks at who is silent.
  std::chrono::milliseconds interval{100};
  /// A node that showed no sign of life for this long is lost; several intervals.
  std::chrono::milliseconds silence{800};
  /// When to ask the operating system about a silent process of this host, and to doubt others.
  std::chrono::milliseconds suspicion{300};
  /// Instead of `silence`, for a process of this host and network that the system calls alive: it
  /// waits for a processor. Nothing but the machine's load stands between us.
  std::chrono::milliseconds starved_silence{10'000};
  /// false: for processes of this host silence alone decides, as for others.
  bool ask_system = true;
};

/// Decides who is alive. Pure: events and the time come in, effects go out, in order; no thread,
/// clock or I/O.
///
/// It counts silence in its own ticks: a tick adds one interval, however late it comes (and nothing
/// when it comes right after another), and after a late tick nobody is lost. An observer that was
/// starved, or stopped with the whole machine, has not listened meanwhile: what arrived is unread,
/// and the next tick that is on time comes after it was read. So a node whose heartbeats are never
/// more than `silence` less two intervals apart is never lost. The price is that an observer that
/// gets no processor is slow to notice a death.
class liveness {
 public:
  using clock = std::chrono::steady_clock;

  struct beat {  ///< Send a heartbeat.
    std::string node;
  };
  struct examine {  ///< Ask the operating system, and say `examined`.
    std::string node;
    process_identity process;
  };
  struct doubt {  ///< A node of another host has been silent for `suspicion`; at each tick.
    std::string node;
  };
  struct lost {  ///< Once; the node is forgotten. timed_out for silence, else peer_lost.
    std::string node;
    error why;
  };
  using effect = std::variant<beat, examine, doubt, lost>;
  using effects = std::vector<effect>;

  /// `self` is where we run.
  liveness(const liveness_settings& settings, process_identity self)
      : settings_(settings), self_(std::move(self)) {}

  /// From here on the node is sent heartbeats and observed.
  void node_up(const std::string& node, const process_identity& where);
  void node_down(const std::string& node);
  /// Any frame is a sign of life.
  void heard(const std::string& node);

  /// To be called once an interval, as nearly as may be.
  effects tick(clock::time_point now);
  effects examined(const std::string& node, process_state state);

  /// How long this process itself stood still, if it did so for longer than `suspicion`, just now
  /// or in the last seconds: others may have counted it as lost.
  [[nodiscard]] std::optional<std::chrono::milliseconds> stood_still(clock::time_point now) const;

 private:
  struct peer {
    process_identity where;
    clock::duration silent{0};
  };

  [[nodiscard]] bool is_of_this_host(const peer& who) const;
  [[nodiscard]] bool is_of_this_network(const peer& who) const;
  void lose_if_silent(const std::string& node, const peer& who, clock::duration limit,
                      effects& out) const;
  void forget_lost(const effects& of);
  [[nodiscard]] std::chrono::milliseconds noticeable_pause() const;

  const liveness_settings settings_;
  const process_identity self_;
  std::map<std::string, peer> peers_;
  std::optional<clock::time_point> last_tick_;
  clock::duration pause_{0};            // the last time we stood still
  clock::time_point pause_until_ = {};  // when it is forgotten
};

/// "0.8 s"
[[nodiscard]] std::string in_seconds(liveness::clock::duration time);

}  // namespace troupe::actors
