#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/data/dataset.hpp"
#include "messages/base/error.hpp"

namespace troupe::apps {

/// Whether a source is "clicks:..".
[[nodiscard]] bool is_clicks(const std::string& source);

/// "clicks:FIELDS:ROWS[:COUNT]": COUNT (default 100,000) samples of FIELDS words each, word i out
/// of ROWS of its own, low numbers far more often than high ones, and a tenth as many for testing.
/// A sample's label (of 2) follows from hidden weights of its words. `inputs` of a batch are [N,
/// FIELDS] i64. A sample depends on (seed, split, index) alone. Errors: bad_config.
struct clicks_shape {
  std::int64_t fields = 0;
  std::int64_t rows = 0;
  std::int64_t count = 100'000;
};
[[nodiscard]] result<clicks_shape> parse_clicks(const std::string& source);
[[nodiscard]] std::unique_ptr<engine::dataset> open_clicks(const clicks_shape& shape,
                                                           std::uint64_t seed);

}  // namespace troupe::apps
