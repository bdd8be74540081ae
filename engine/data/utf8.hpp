#pragma once

#include <cstddef>
#include <string_view>

namespace troupe::engine {

/// Bytes of the UTF-8 character that a text begins with; 0 where it begins with none: at its end,
/// or with what is cut off, overlong, a surrogate or beyond U+10FFFF.
[[nodiscard]] std::size_t utf8_length(std::string_view text);

}  // namespace troupe::engine
