#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/config/option.hpp"
#include "messages/base/error.hpp"

namespace troupe::apps {

/// TOML table [transformer], of transformer_pipeline.
struct transformer_settings {
  std::int64_t layers = 4;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t context = 128;  ///< Tokens of a sample.
  bool tied = true;            ///< One weight embeds tokens and scores them.
  double dropout = 0;
  std::string prompt = "The ";      ///< What the sample at the end goes on from.
  std::int64_t sample_bytes = 200;  ///< Its length; 0: none.

  bool operator==(const transformer_settings&) const = default;
};

[[nodiscard]] std::vector<cluster::option> transformer_options();

/// Whether they fit each other. Errors: bad_config.
[[nodiscard]] result<void> check_transformer(const cluster::draft& whole);

}  // namespace troupe::apps
