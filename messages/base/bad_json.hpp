#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe {

/// What a text that is not JSON does, as what follows its name in a sentence: "is not JSON at line
/// 3, column 7". `byte`: the last that a parser took, from 1; one behind the text where that ends
/// too early.
[[nodiscard]] std::string words_on_bad_json(std::string_view text, std::size_t byte);

}  // namespace troupe
