#include "engine/data/take_number.hpp"

#include <charconv>
#include <system_error>

namespace troupe::engine {

std::optional<std::int64_t> take_number(std::string_view& text, char separator, std::int64_t most) {
  std::int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || number < 1 || number > most) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (text.empty()) return number;
  if (text.front() != separator || text.size() == 1) return std::nullopt;
  text.remove_prefix(1);
  return number;
}

}  // namespace troupe::engine
