#include "messages/base/printable.hpp"

namespace troupe {
namespace {

constexpr std::string_view digits = "0123456789abcdef";

std::string escaped(unsigned char byte) {
  if (byte == '\n') return "\\n";
  if (byte == '\r') return "\\r";
  if (byte == '\t') return "\\t";
  return std::string("\\x") + digits[byte >> 4] + digits[byte & 15];
}

/// A control character of one byte, and the second byte of one that has two.
bool is_control(unsigned char byte) {
  return byte < 0x20 || byte == 0x7F;
}
bool is_second_of_control(unsigned char byte) {
  return byte >= 0x80 && byte < 0xA0;
}

std::string escape(std::string_view text, std::string_view kept) {
  constexpr unsigned char first_of_control = 0xC2;
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (byte == first_of_control && is_second_of_control(next)) {
      out += escaped(byte) + escaped(next);
      ++i;
    } else if (is_control(byte) && kept.find(text[i]) == std::string_view::npos) {
      out += escaped(byte);
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  return escape(text, "");
}

std::string printable_lines(std::string_view text) {
  return escape(text, "\n\t");
}

std::string shell_word(std::string_view text) {
  std::string out = "'";
  for (const char each : text) out += each == '\'' ? std::string("'\\''") : std::string(1, each);
  return out + "'";
}

std::string to_hexadecimal(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const auto each : bytes) {
    text += digits[std::to_integer<unsigned>(each) >> 4];
    text += digits[std::to_integer<unsigned>(each) & 15];
  }
  return text;
}

std::optional<std::vector<std::byte>> from_hexadecimal(std::string_view text) {
  if (text.size() % 2 != 0 || text.find_first_not_of(digits) != text.npos) return std::nullopt;
  std::vector<std::byte> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(digits.find(text[2 * i]) << 4 | digits.find(text[2 * i + 1]));
  return bytes;
}

}  // namespace troupe
