#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/config/option.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The settings of a TOML text, in the order of their lines; `name` stands for the file in errors,
/// `known` are the options there are, to which the settings point.
/// Errors: bad_config with "FILE:LINE: table.key: ..", the first by line.
[[nodiscard]] result<std::vector<setting>> parse_toml(std::string_view text, std::string_view name,
                                                      const std::vector<option>& known);

/// The same for a file. Errors: also bad_config when the file cannot be read.
[[nodiscard]] result<std::vector<setting>> read_toml(const std::filesystem::path& file,
                                                     const std::vector<option>& known);

/// Everything that is wrong with a file, a line for each; one that cannot be read has none.
[[nodiscard]] std::vector<std::string> toml_errors(const std::filesystem::path& file,
                                                   const std::vector<option>& known);

}  // namespace troupe::cluster
