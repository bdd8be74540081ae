#include "engine/data/utf8.hpp"

namespace troupe::engine {
namespace {

// How many bytes a character takes that begins with this one; 0: none does.
std::size_t length_of(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0) return 2;
  if (first >= 0xe0 && first < 0xf0) return 3;
  if (first >= 0xf0 && first < 0xf5) return 4;
  return 0;
}

// Refuses what is no character: overlong forms, surrogates, beyond U+10FFFF.
bool is_character(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (bytes.size() == 1) return true;
  for (std::size_t i = 1; i < bytes.size(); ++i)
    if ((at(i) & 0xc0) != 0x80) return false;
  if (bytes.size() == 3)
    return !(at(0) == 0xe0 && at(1) < 0xa0) && !(at(0) == 0xed && at(1) >= 0xa0);
  if (bytes.size() == 4)
    return !(at(0) == 0xf0 && at(1) < 0x90) && !(at(0) == 0xf4 && at(1) >= 0x90);
  return true;
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const auto length = length_of(static_cast<unsigned char>(text.front()));
  if (length == 0 || length > text.size() || !is_character(text.substr(0, length))) return 0;
  return length;
}

}  // namespace troupe::engine
