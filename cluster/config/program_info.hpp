#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cluster/config/option.hpp"
#include "cluster/config/registries.hpp"
#include "cluster/config/trainer_config.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a program says about itself in --help and --version, and which options it takes.
struct program_info {
  std::string name;
  std::string version;
  std::string summary;           ///< One sentence.
  trainer_config defaults = {};  ///< The settings that are not given.
  registries known = {};         ///< What can be named in its configuration.
  std::vector<option> own = {};  ///< Its own tables, which come first; made of option_fields.hpp.
  /// Whether its own settings fit each other and the common ones. Errors: bad_config, beginning
  /// with the setting to change (see `blame`). Left out: they do.
  std::function<result<void>(const draft&)> check = {};
  bool has_stages = true;  ///< Otherwise it has no [pipeline] and no options of stages.
};

/// Every option of a program, tables together, in the order of --help.
[[nodiscard]] std::vector<option> option_table(const program_info& program);

}  // namespace troupe::cluster
