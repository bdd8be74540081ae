#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cluster/launch/process_group.hpp"
#include "messages/base/error.hpp"

// What a launcher and the agent that it has on a host say to each other: the agent's standard input
// takes orders, its standard output gives events. Both are JSON objects, one a line. Lines and not
// lengths, because a login shell may print before the agent runs: what is not ours is seen at a
// glance and can be quoted, and the stream goes on behind it. Before its first event the agent
// writes `agent_magic`.

namespace troupe::cluster {

inline constexpr std::string_view agent_magic = "troupe agent, protocol";
inline constexpr std::uint32_t agent_protocol_version = 1;
/// Of a child's output that one event carries, so that the event fits a line_splitter's line, also
/// where it is sealed and each byte became six.
inline constexpr std::size_t most_text_bytes = 6 << 10;

/// How often either side says that it is alive, where silence of this length counts as its end:
/// four times in it, so that one word that is late does no harm, and at least once a second.
[[nodiscard]] inline std::chrono::milliseconds interval_of_words(
    std::chrono::milliseconds silence) {
  using std::chrono::milliseconds;
  return std::clamp<milliseconds>(silence / 4, milliseconds{1}, milliseconds{1000});
}

/// Values of an order or event. Copyable, comparable.
namespace orders {

/// The first order. A side that receives nothing for `silence_ms` ends its processes.
struct begin {
  std::uint32_t silence_ms = 0;
  bool operator==(const begin&) const = default;
};

/// Starts the agent's own program as a process.
struct start {
  std::string name;  ///< Unique among those that run.
  std::vector<std::string> arguments;
  std::map<std::string, std::string> environment;  ///< Added to the agent's, or replacing.
  std::string working_folder;                      ///< Empty: the agent's own.
  std::string secret;                              ///< In hexadecimal digits.
  bool operator==(const start&) const = default;
};

/// Kills the process of this name and what it has started.
struct kill {
  std::string name;
  bool operator==(const kill&) const = default;
};

/// The launcher stops with all processes, and goes on with them; meanwhile it is silent.
struct suspend {
  bool operator==(const suspend&) const = default;
};
struct resume {
  bool operator==(const resume&) const = default;
};

/// The launcher is alive. The agent answers at once that it is, too.
struct alive {
  bool operator==(const alive&) const = default;
};

/// Ends all processes, by force after `grace_ms`, and then the agent.
struct end {
  std::uint32_t grace_ms = 0;
  bool operator==(const end&) const = default;
};

}  // namespace orders

namespace events {

/// The first event: who this is.
struct hello {
  std::uint32_t protocol = agent_protocol_version;
  std::string build;  ///< Of the program: see program_build.
  std::string host;
  std::uint32_t cores = 0;
  std::uint64_t memory_bytes = 0;
  std::int64_t clock_ns = 0;  ///< Of the day there, since 1970; 0: another build did not say.
  std::vector<std::string> addresses = {};  ///< Of its interfaces: see interface_addresses.
  bool operator==(const hello&) const = default;
};

struct started {
  std::string name;
  bool operator==(const started&) const = default;
};

/// A process was not started.
struct refused {
  std::string name;
  std::string why;
  bool operator==(const refused&) const = default;
};

/// What a process has written: a line, or a piece of a long one.
struct line {
  std::string name;
  output_stream stream = output_stream::out;
  std::string text;
  bool operator==(const line&) const = default;
};

struct ended {
  std::string name;
  pid_t pid = 0;
  int code = 0;
  int signal = 0;
  bool lacked_memory = false;  ///< As in child_exit.
  bool operator==(const ended&) const = default;
};

struct alive {
  bool operator==(const alive&) const = default;
};

/// The scheduler asks this host's processes to end; they go on until the launcher ends them.
struct asked_to_end {
  bool operator==(const asked_to_end&) const = default;
};

/// SIGUSR1 or SIGUSR2 has reached this host's agent, as a scheduler sends one to a whole job.
struct signalled {
  int signal = 0;
  bool operator==(const signalled&) const = default;
};

/// Something ends the agent, which ends its processes: how they end follows from that.
struct ends {
  std::string why;  ///< "signal 2 (SIGINT) asked it to end"
  bool operator==(const ends&) const = default;
};

}  // namespace events

using agent_order = std::variant<orders::begin, orders::start, orders::kill, orders::suspend,
                                 orders::resume, orders::alive, orders::end>;
using agent_event =
    std::variant<events::hello, events::started, events::refused, events::line, events::ended,
                 events::alive, events::asked_to_end, events::signalled, events::ends>;

/// One line, without its newline. Bytes that are no UTF-8 are replaced.
[[nodiscard]] std::string encode(const agent_order& order);
[[nodiscard]] std::string encode(const agent_event& event);

/// What a line says. Errors: bad_frame, also for a number that its member cannot hold, and never
/// with what a `start` holds.
[[nodiscard]] result<agent_order> decode_order(std::string_view line);
[[nodiscard]] result<agent_event> decode_event(std::string_view line);

/// The line that goes before the first event.
[[nodiscard]] std::string magic_line();

}  // namespace troupe::cluster
