#pragma once

#include <string_view>

/// The process's log: stderr, one line a call, in which control characters are escaped; safe from
/// any thread. A room of its own so that no other header brings the formatting library along
/// (LibTorch's headers ship another version of it).
namespace troupe::log {

/// Whether `debug` lines are written; off at first.
void set_verbose(bool on);

void debug(std::string_view line);
void info(std::string_view line);
void warning(std::string_view line);
void error(std::string_view line);

}  // namespace troupe::log
