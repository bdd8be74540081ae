#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

namespace troupe::tests {

/// Whether a program was started as the process of a stage, and not as a trainer.
inline bool is_stage(int argc, const char* const* argv) {
  const auto words = std::span(argv, static_cast<std::size_t>(argc));
  return std::ranges::any_of(words,
                             [](const char* word) { return std::strcmp(word, "--join") == 0; });
}

}  // namespace troupe::tests
