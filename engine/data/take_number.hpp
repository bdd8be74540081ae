#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace troupe::engine {

/// Takes a number from 1 to `most` off the front of a source's name, and the separator behind it
/// unless the text ends there. nullopt, with `text` as it may be then: there is no such number, or
/// something else follows it, or nothing follows the separator.
[[nodiscard]] std::optional<std::int64_t> take_number(std::string_view& text, char separator,
                                                      std::int64_t most);

}  // namespace troupe::engine
