#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/model/layer.hpp"

namespace troupe::apps {

/// How a text is drawn from a model's scores.
struct generation {
  std::int64_t context = 128;  ///< Bytes that the model looks back.
  std::int64_t bytes = 200;    ///< To add.
  double temperature = 0.8;    ///< Below 1: likely bytes become likelier.
  std::uint64_t seed = 0;
};

/// Goes on from `prompt` (at least one byte), byte by byte, and returns both. One process, no
/// pipeline; torch's exceptions pass through.
[[nodiscard]] std::string generate(const engine::model& layers, const std::string& prompt,
                                   const generation& how);

/// A text for a terminal: UTF-8 as it is; bytes that are none, and controls other than tab and line
/// end, as "\xc3".
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace troupe::apps
