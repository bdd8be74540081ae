#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::apps {

/// What `troupe launch`, `check` and `join` hand to the program of a run.
struct launch_request {
  /// The run's TOML files, of which a later one wins; none only where `program` is given.
  std::vector<std::filesystem::path> files;
  std::vector<std::string> sets;    ///< TABLE.KEY=VALUE, which win over the files.
  std::string program;              ///< Empty: what the files say.
  std::vector<std::string> before;  ///< Words that the program gets first.
  std::vector<std::string> flags;   ///< Words of the user's, which it gets last.
};

/// Runs the program in place of this process: what `program` or [cluster] program names, a path, or
/// a name beside this program or in PATH. Returns only where that fails. Errors: bad_config, with
/// the place in a file or the flag to change; io_failed.
[[nodiscard]] error become_program(const launch_request& request);

}  // namespace troupe::apps
