#pragma once

#include <string_view>

namespace troupe::cluster {

/// What stands before a line of standard error in which a process that a launcher or agent has
/// started says why it ends. Who has started it says that with how the process ended, and so does
/// not show the line by itself.
inline constexpr std::string_view last_word_mark = "troupe ends: ";

/// The line of standard error in which such a process says that it has joined its run (see
/// child_spec::joins). It is not shown.
inline constexpr std::string_view joined_mark = "troupe has joined";

}  // namespace troupe::cluster
