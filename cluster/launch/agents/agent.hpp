#pragma once

#include <string_view>

namespace troupe::cluster {

/// The word with which a program is started as an agent.
inline constexpr const char* agent_word = "--agent";
/// What may stand behind it where a scheduler carries the agent's stream: it is sealed (see
/// stream_seal), and proved by munge besides.
inline constexpr const char* sealed_word = "sealed";
inline constexpr const char* munge_word = "munge";

/// How a line begins in which an agent says on standard error why it ends.
inline constexpr std::string_view agent_mark = "troupe agent: ";

/// Serves a launcher on standard input and output, as agent_messages.hpp says: starts processes of
/// this very program and ends them with the launcher, whatever ended that. Returns the exit code
/// when no process is left. Belongs at the very beginning of `main`: it blocks SIGTERM, SIGHUP and
/// SIGINT for the threads that follow. `way`: empty, sealed_word or munge_word. A scheduler that
/// ends a job sends SIGTERM to its processes on all hosts: on a sealed stream the launcher is asked
/// to end the run, and the agent goes on as long as it answers.
[[nodiscard]] int run_agent(std::string_view way);

}  // namespace troupe::cluster
