#pragma once

#include <string>

namespace troupe {

/// What printf would write. For the files that include LibTorch's headers: those ship a formatting
/// library of their own, which must not meet the one that messages/ uses.
[[nodiscard, gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace troupe
