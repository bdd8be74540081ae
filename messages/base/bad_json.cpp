#include "messages/base/bad_json.hpp"

#include <algorithm>

namespace troupe {

std::string words_on_bad_json(std::string_view text, std::size_t byte) {
  const auto before = text.substr(0, std::min(text.size(), std::max<std::size_t>(byte, 1) - 1));
  const auto line = std::ranges::count(before, '\n') + 1;
  const auto column = before.size() - (before.rfind('\n') + 1);  // npos + 1 is 0
  const auto place = "line " + std::to_string(line) + ", column " + std::to_string(column + 1);
  return byte > text.size() ? "ends within its JSON, at " + place : "is not JSON at " + place;
}

}  // namespace troupe
