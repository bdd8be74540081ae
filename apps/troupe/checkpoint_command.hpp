#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "messages/base/error.hpp"

namespace troupe::apps {

enum class checkpoint_verb : std::uint8_t { list, inspect, verify, export_weights };

/// What `troupe checkpoint` is told.
struct checkpoint_request {
  checkpoint_verb verb = checkpoint_verb::list;
  /// A folder of checkpoints, or one of them. Of several, `inspect` and `export` take the newest.
  std::filesystem::path where;
  std::filesystem::path file;  ///< Of `export`: what is written.
  bool as_json = false;
};

struct checkpoint_answer {
  std::string text;       ///< For standard output.
  std::string complaint;  ///< What `verify` found, in one line; empty: nothing is wrong.
};

/// Looks at checkpoints without a run; no more than a few MiB of them are in memory. `now`: seconds
/// since 1970, for ages. Errors: bad_data naming the file, and io_failed where `export` cannot
/// write.
[[nodiscard]] result<checkpoint_answer> run_checkpoint_command(const checkpoint_request& request,
                                                               std::int64_t now);

}  // namespace troupe::apps
