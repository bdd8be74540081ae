#pragma once

#include <sys/types.h>

#include <optional>

#include "cluster/launch/start/child_start.hpp"

namespace troupe::cluster {

/// A command line, as `main` gets it.
struct command_words {
  int count = 0;
  const char* const* words = nullptr;
};

/// What a zygote shows as its name (/proc/PID/comm).
inline constexpr const char* zygote_name = "troupe-zygote";

/// Forks this process's zygote: a process of one thread that waits, and of which those children of
/// this process are copies that are this very program. A copy is a child of this process, not of
/// the zygote, and has what one that is executed has: a command line, an environment, folder,
/// descriptors, limits, a process group, default signals. It has not loaded the program's libraries
/// again, and shares their pages; memory is in it as it is here in this call. The zygote has no
/// descriptor of this process, and ends with it.
///
/// Returns nothing here, and in each copy its command line, with which it is to go on as `main`
/// does. There is no zygote, and each child is executed, where a copy might differ from one:
/// this process has several threads or has opened files, libraries are preloaded into it, a
/// sanitizer watches it, or TROUPE_ZYGOTE is "off".
[[nodiscard]] std::optional<command_words> keep_zygote();

/// Ends the zygote, if there is one, and reaps it.
void end_zygote() noexcept;

/// A copy of this process's zygote, which starts as `how` says. 0 where there is none or it cannot
/// be: the child has another environment than this process began with, or this process
/// another control group, processors, user, .. by now. From any thread.
[[nodiscard]] pid_t copy_of_zygote(const child_start& how);

}  // namespace troupe::cluster
