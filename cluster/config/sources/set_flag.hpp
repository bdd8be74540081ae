#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/config/option.hpp"

namespace troupe::cluster {

/// "optimizer.lr=0.1" in its parts.
struct set_parts {
  std::string table;                        ///< "optimizer", "node".
  std::string key;                          ///< "lr".
  std::string value;                        ///< "0.1": what stands behind the first '='.
  std::optional<std::size_t> element = {};  ///< 1 of "node[1].cores=2".
};

/// Nothing where the text is not TABLE.KEY=VALUE.
[[nodiscard]] std::optional<set_parts> split_set(std::string_view text);

/// The value as a text: what is in quotes where it is a TOML string, and else as it stands.
[[nodiscard]] std::string text_of(const set_parts& parts);

/// What the texts of --set say, in their order; one of several for a key counts last. A value is
/// TOML where it can be, and else a text as it stands; of a key that takes texts anything is one.
/// `nodes`: how many [[node]] tables the files have, of which node[0].KEY names the first.
/// Complaints begin with "--set table.key".
[[nodiscard]] settings_layer parse_sets(const std::vector<std::string>& texts,
                                        const std::vector<option>& known, std::size_t nodes);

}  // namespace troupe::cluster
