#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/config/option.hpp"
#include "cluster/config/sources/variables.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a TOML text sets, in the order in which it stands there; `name` stands for the file in
/// errors, `known` are the options there are, to which the settings point. A complaint begins with
/// "FILE:LINE:COLUMN: table.key": where the wrong value stands, or the key where that is unknown.
[[nodiscard]] settings_layer parse_toml(std::string_view text, std::string_view name,
                                        const std::vector<option>& known,
                                        const variables& environment);

/// The same for a file, which is a complaint too where it cannot be read.
[[nodiscard]] settings_layer read_toml(const std::filesystem::path& file,
                                       const std::vector<option>& known,
                                       const variables& environment);

/// A text of a file, and where it stands.
struct placed_text {
  std::string text;
  std::string place;  ///< "run.toml:3:11"
};

/// One text of a file, for a caller that does not know the tables of the file's program: nothing
/// else of the file is checked. Nothing: the file does not set it. Errors: bad_config where the
/// file cannot be read or is no TOML, and where the value is no text.
[[nodiscard]] result<std::optional<placed_text>> read_text_key(const std::filesystem::path& file,
                                                               std::string_view table,
                                                               std::string_view key,
                                                               const variables& environment);

}  // namespace troupe::cluster
