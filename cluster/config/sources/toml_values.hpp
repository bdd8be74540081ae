#pragma once

#include <toml++/toml.h>

#include <string>
#include <string_view>
#include <vector>

#include "cluster/config/option.hpp"
#include "cluster/config/sources/variables.hpp"

namespace troupe::cluster {

// What files and --set share: one value, and a key that is not known.

/// Why a value is refused, and which part of it, to say where that stands.
struct refused_value {
  std::string why;
  const toml::node* at = nullptr;
};

/// The checked value of an option, with environment variables put into its texts. A text that had
/// some is read as a flag's would be, so that it may be a number's.
[[nodiscard]] tl::expected<option_value, refused_value> value_of(const option& entry,
                                                                 const toml::node& node,
                                                                 const variables& known);

/// "the integer 3"
[[nodiscard]] std::string kind_of(const toml::node& node);

/// A parser's complaint in one line.
[[nodiscard]] std::string one_line(const toml::parse_error& wrong);

/// The tables that options are in, each once, in their order.
[[nodiscard]] std::vector<std::string_view> table_names(const std::vector<option>& known);

/// Null: there is none.
[[nodiscard]] const option* find_option(const std::vector<option>& known, std::string_view table,
                                        std::string_view key);

/// "; did you mean lr in [optimizer]?", where a key that stands in the wrong table belongs; empty:
/// nowhere.
[[nodiscard]] std::string elsewhere(const std::vector<option>& known, std::string_view key);

/// ": unknown key; did you mean stages?; allowed: stages, cut" of a key in a known table.
[[nodiscard]] std::string unknown_key(const std::vector<option>& known, std::string_view table,
                                      std::string_view key);

/// ": unknown table; did you mean [pipeline]?; allowed: pipeline, model"
[[nodiscard]] std::string unknown_table(const std::vector<option>& known, std::string_view table);

}  // namespace troupe::cluster
