#pragma once

namespace troupe::cluster {

/// The word with which a program is started as an agent.
inline constexpr const char* agent_word = "--agent";

/// Serves a launcher on standard input and output, as agent_messages.hpp says: starts processes of
/// this very program and ends them with the launcher, whatever ended that. Returns the exit code
/// when no process is left. Belongs at the very beginning of `main`: it blocks SIGTERM, SIGHUP and
/// SIGINT for the threads that follow.
[[nodiscard]] int run_agent();

}  // namespace troupe::cluster
