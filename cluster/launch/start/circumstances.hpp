#pragma once

#include <set>
#include <string>

namespace troupe::cluster {

/// What a process that the calling thread executes would inherit from it, and a copy of its zygote
/// would not: user, groups and capabilities, processors and memory nodes, control groups, umask,
/// priority, how soon the kernel kills it when memory is short. One text, to be compared. Empty:
/// the system does not say.
[[nodiscard]] std::string circumstances();

/// The entries of an environment that the loader and libraries may have read before `main`: all but
/// those that this program sets itself, for what reads them later.
[[nodiscard]] std::set<std::string> environment_to_compare(char* const* environment);

}  // namespace troupe::cluster
