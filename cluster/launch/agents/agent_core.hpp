#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "cluster/launch/agents/agent_messages.hpp"
#include "cluster/launch/child_process.hpp"

namespace troupe::cluster {

/// How an agent reacts to its launcher and to its processes: it starts them, reports on them, and
/// ends all of them when its launcher says so, closes the stream or falls silent. A
/// pure state machine; `now` never goes back.
class agent_core {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  /// Tell the launcher.
  struct tell {
    agent_event what;
    bool operator==(const tell&) const = default;
  };
  /// Start a process, and say `started` or `refused` to this core when it is known which.
  struct launch {
    orders::start what;
    bool operator==(const launch&) const = default;
  };
  /// Kill a process and what it has started.
  struct kill {
    std::string name;
    bool operator==(const kill&) const = default;
  };
  /// Stop all processes, and let them go on.
  struct suspend_all {
    bool operator==(const suspend_all&) const = default;
  };
  struct resume_all {
    bool operator==(const resume_all&) const = default;
  };
  /// End all processes, by force after `grace`.
  struct end_all {
    std::chrono::milliseconds grace{0};
    bool operator==(const end_all&) const = default;
  };
  /// End the agent. `why` goes to its standard error; empty: in order.
  struct leave {
    std::string why;
    bool operator==(const leave&) const = default;
  };
  using effect = std::variant<tell, launch, kill, suspend_all, resume_all, end_all, leave>;
  using effects = std::vector<effect>;

  agent_core(events::hello self, time_point now);

  /// What to say first.
  [[nodiscard]] effects begin();
  /// A line of the launcher's.
  [[nodiscard]] effects heard(std::string_view line, time_point now);
  /// The launcher's stream is at its end. The launcher is told before the processes end, if it
  /// still listens.
  [[nodiscard]] effects cut_off(const std::string& why);
  /// The same where a signal asks the agent to end.
  [[nodiscard]] effects asked_by(int signal);
  /// A scheduler asks all processes of its job to end. The launcher is told, and decides.
  [[nodiscard]] effects asked_to_end(time_point now);
  /// SIGUSR1 or SIGUSR2, which asks for no end. The launcher is told.
  [[nodiscard]] effects signalled(int signal) const;
  [[nodiscard]] effects started(const std::string& name);
  [[nodiscard]] effects refused(const std::string& name, const std::string& why);
  [[nodiscard]] effects wrote(std::string_view name, output_stream stream, std::string_view text);
  [[nodiscard]] effects ended(const child_exit& how);
  [[nodiscard]] effects tick(time_point now);

  /// How long until `tick` has something to do, at most.
  [[nodiscard]] std::chrono::milliseconds interval() const;

 private:
  [[nodiscard]] effects obey(const agent_order& order);
  [[nodiscard]] effects end(std::chrono::milliseconds grace, const std::string& why);
  [[nodiscard]] effects leave_if_done();
  [[nodiscard]] bool is_there(const std::string& process) const;

  const events::hello self_;
  bool begun_ = false;
  bool suspended_ = false;
  bool left_ = false;
  std::optional<std::string> ending_;  // why
  std::chrono::milliseconds silence_ = actors::usual_deadlines.first_order;
  std::optional<time_point> asked_;  // to end, and not answered
  time_point last_heard_;
  time_point last_told_;
  time_point last_tick_;
  std::set<std::string, std::less<>> starting_;  // of which it is not known whether they run
  std::set<std::string, std::less<>> running_;
};

}  // namespace troupe::cluster
