#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "cluster/launch/agents/agent_messages.hpp"
#include "cluster/launch/child_process.hpp"

namespace troupe::cluster {

/// How an agent is reached, for words about it.
struct agent_place {
  std::string node;   ///< "beta"
  std::string host;   ///< What its carrier is told; empty: a child process on this machine.
  std::string build;  ///< Of our own program, which the agent's must equal.
  std::string program;
  std::string carrier = "ssh";   ///< Or "srun", "mpirun": what starts it on the host.
  std::string own_program = {};  ///< The path of our own.

  /// "node beta (10.0.0.2)"
  [[nodiscard]] std::string text() const;
  /// What a user types to try the carrier: "ssh 10.0.0.2 true"; without one, to try the program.
  [[nodiscard]] std::string trial() const;
  /// "node beta (10.0.0.2): no answer for 2 s; waiting for ssh to reach it and to WHAT"
  [[nodiscard]] std::string waiting(std::chrono::seconds time, const std::string& what) const;
};

/// What to do about a process, or an agent, of another host from which nothing comes any more.
inline constexpr const char* remedy_of_silence =
    "see whether its host is up and reached from here (ip link, ping) and nothing has stopped it "
    "there, and start the run again";

/// A launcher's view of one agent: from the first bytes of its shell to the end of its processes. A
/// pure state machine; `now` never goes back.
class session_core {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  /// Send this order.
  struct send {
    agent_order what;
    bool operator==(const send&) const = default;
  };
  /// The agent takes orders.
  struct ready {
    events::hello who;
    bool operator==(const ready&) const = default;
  };
  /// A line to be shown. `process`: who wrote it; empty: the agent, or the ssh that carries it.
  struct show {
    std::string process;
    output_stream stream = output_stream::err;
    std::string text;
    bool operator==(const show&) const = default;
  };
  /// Something that does no harm, but which the user should know.
  struct warn {
    std::string text;
    bool operator==(const warn&) const = default;
  };
  /// No agent has answered yet, which may be in order. Once, for the user, who waits meanwhile.
  struct wait {
    std::string text;
    bool operator==(const wait&) const = default;
  };
  /// A process has ended.
  struct process_ended {
    child_exit how;
    bool operator==(const process_ended&) const = default;
  };
  /// The agent is lost, and its processes with it; or it never was one. Once.
  struct lost {
    error why;
    bool operator==(const lost&) const = default;
  };
  /// Events of the agent that are passed on: the scheduler asks the run to end, or SIGUSR1 or
  /// SIGUSR2 has reached the agent.
  using asked_to_end = events::asked_to_end;
  using signalled = events::signalled;
  using effect =
      std::variant<send, ready, show, warn, wait, process_ended, lost, asked_to_end, signalled>;
  using effects = std::vector<effect>;

  session_core(agent_place place, std::chrono::milliseconds silence,
               std::chrono::milliseconds patience, time_point now);

  /// A line of the agent's standard output or error, or of the ssh or shell before it.
  [[nodiscard]] effects heard(output_stream stream, std::string_view line, time_point now);
  /// What came is nothing that the agent can have said.
  [[nodiscard]] effects garbled(const std::string& why);
  /// The agent's host cannot do what is wanted of it.
  [[nodiscard]] effects refuse(const std::string& why);
  /// A process that the agent was to end has not ended for so long.
  [[nodiscard]] effects has_not_ended(const std::string& process, std::chrono::milliseconds time);
  /// Asks the agent whether it is there, unless such a question is open. Whatever it says is an
  /// answer.
  [[nodiscard]] effects ask(time_point now);
  /// Gives it up if that question has been open for so long, while we have not stood still.
  [[nodiscard]] effects give_up_unanswered(std::chrono::milliseconds time, time_point now);
  /// The agent has ended, or the ssh that reached it.
  [[nodiscard]] effects ended(const child_exit& how);
  [[nodiscard]] effects tick(time_point now);
  /// Has the agent start a process.
  [[nodiscard]] effects start(orders::start what);
  /// Our own process has stood still, as its agents have been told, and goes on.
  [[nodiscard]] effects resume(time_point now);
  /// The processes have been told to end, which the agent is to report. If it says nothing at
  /// all, the user is told, and it is given up after deadlines::quiet_agent. Processes that take
  /// longer are waited for; which ones is said once.
  void expect_ends(time_point now) noexcept { ends_expected_ = now; }
  /// Nothing more is wanted of the agent: its end is in order from here on.
  [[nodiscard]] effects end(std::chrono::milliseconds grace);
  /// That the agent, told to end, has not done so for so long, and is left; for the user.
  [[nodiscard]] std::string words_on_left(std::chrono::milliseconds time) const;

  [[nodiscard]] bool is_ready() const noexcept { return state_ == state::ready; }
  [[nodiscard]] bool is_over() const noexcept { return state_ == state::over; }
  /// Whether anything has come from the agent after that moment.
  [[nodiscard]] bool has_spoken_since(time_point when) const noexcept { return last_heard_ > when; }
  /// Whether nothing has come, and what came would have been read: `tick` was called often enough.
  [[nodiscard]] bool has_been_silent_since(time_point when) const noexcept {
    return !has_spoken_since(when) && stood_still_ <= when;
  }
  /// Whether it was asked and has not answered, and an answer would have been read.
  [[nodiscard]] bool is_question_open() const noexcept {
    return asked_ && has_been_silent_since(*asked_);
  }
  /// Whether it has spoken within that time, and has answered all questions soon since `other` was
  /// asked its last one: what silences `other` is not ahead of both, nor was until now.
  [[nodiscard]] bool answers_beside(const session_core& other, std::chrono::milliseconds time,
                                    time_point now) const noexcept;
  [[nodiscard]] const agent_place& place() const noexcept { return place_; }
  /// Processes that were to start and have not ended.
  [[nodiscard]] const std::set<std::string>& processes() const noexcept { return processes_; }

 private:
  enum class state : std::uint8_t { silent, spoken, ready, over };

  [[nodiscard]] effects heard_event(std::string_view line);
  [[nodiscard]] effects heard_first(const agent_event& first);
  [[nodiscard]] effects heard_before(output_stream stream, std::string_view line);
  [[nodiscard]] effects tick_before(std::chrono::milliseconds quiet);
  [[nodiscard]] effects tick_at_end(time_point now);
  [[nodiscard]] effects tell_late(time_point now);
  [[nodiscard]] std::string carrier() const;
  [[nodiscard]] std::string fate_of_left() const;
  [[nodiscard]] effects lose(errc code, std::string why);

  const agent_place place_;
  const std::chrono::milliseconds silence_;
  const std::chrono::milliseconds patience_;
  state state_ = state::silent;
  bool ending_ = false;
  bool told_wait_ = false;
  time_point last_heard_;
  time_point last_told_;
  time_point last_tick_;
  time_point stood_still_;                   // until then, the last time that we did
  std::optional<time_point> asked_;          // whether it is there
  std::optional<time_point> answered_late_;  // the last time that it did
  std::optional<time_point> ends_expected_;  // since when
  bool told_quiet_end_ = false;
  bool told_late_ = false;
  std::deque<std::string> shell_out_;  // what came before the agent's first line
  std::deque<std::string> errors_;     // the last lines of standard error
  std::set<std::string> processes_;
};

/// The words with which ssh is started to run an agent: `options` go before the host, and win over
/// our own but for those that keep ssh from asking somebody. The program's path may hold any
/// character. `library_path`: LD_LIBRARY_PATH of the agent and its processes; empty: the host's.
[[nodiscard]] std::vector<std::string> ssh_words(const std::string& host,
                                                 const std::vector<std::string>& options,
                                                 const std::string& program,
                                                 const std::string& library_path = "");

/// The same for any line for the host's shell.
[[nodiscard]] std::vector<std::string> ssh_words_of_line(const std::string& host,
                                                         const std::vector<std::string>& options,
                                                         const std::string& line);

/// The words with which srun, within its allocation, and Open MPI's mpirun start a command on one
/// host: `options` go before it.
[[nodiscard]] std::vector<std::string> srun_words(const std::string& host,
                                                  const std::vector<std::string>& options,
                                                  const std::vector<std::string>& command);
[[nodiscard]] std::vector<std::string> mpirun_words(const std::string& host,
                                                    const std::vector<std::string>& options,
                                                    const std::vector<std::string>& command);

/// The same as explain_start for what srun or mpirun wrote, without the node's name; empty: nothing
/// of it is known.
[[nodiscard]] std::string explain_scheduler(const agent_place& place,
                                            const std::deque<std::string>& errors);

/// What is known of a failure, "WHAT; WHAT TO DO", with the line that shows it: "WHAT (LINE); WHAT
/// TO DO".
[[nodiscard]] std::string with_quote(std::string known, const std::string& line);

/// Why an agent has ended before it said who it is, in one line: what its ssh and shell wrote on
/// standard error, turned into what is wrong and what to do. `shell_out`: what they wrote on
/// standard output. Its code is address_unavailable where the user has something to change, and
/// peer_lost where what was to answer has ended on the way.
[[nodiscard]] error explain_start(const agent_place& place, const child_exit& how,
                                  const std::deque<std::string>& errors,
                                  const std::deque<std::string>& shell_out);

}  // namespace troupe::cluster
