#pragma once

#include <span>

#include "cluster/config/sources/command_line.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Reads the command line of a stage process, which has --join: the inverse of to_arguments.
/// Errors: bad_config naming the flag.
[[nodiscard]] result<node_options> read_node_arguments(std::span<const char* const> arguments);

}  // namespace troupe::cluster
