#pragma once

#include <functional>
#include <optional>
#include <string>

#include "cluster/config/option.hpp"

namespace troupe::cluster {

/// The value of an environment variable; nothing where it is not set.
using variables = std::function<std::optional<std::string>(const std::string& name)>;

/// Those of this process.
[[nodiscard]] variables variables_of_process();

/// A text of a configuration file with its environment variables put in: ${NAME}, or
/// ${NAME:-default} where NAME may be unset or empty. $${ stands for ${ itself; any other $ is a $.
/// Refused: a variable that is not set and has no default, and what is no name of one.
[[nodiscard]] accepted<std::string> with_variables(const std::string& text, const variables& known);

}  // namespace troupe::cluster
