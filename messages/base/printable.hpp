#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// A text that was given from outside, as one line that no terminal takes for commands: control
/// characters, also those that UTF-8 writes in two bytes, are escaped ("\n", "\x1b"). What else
/// there is stays as it is.
[[nodiscard]] std::string printable(std::string_view text);

/// The same for a text of several lines or columns: newlines and tabs stay.
[[nodiscard]] std::string printable_lines(std::string_view text);

/// A text as one word of a POSIX shell's command line: in single quotes.
[[nodiscard]] std::string shell_word(std::string_view text);

/// Bytes as two hexadecimal digits each, and back; nothing if the text is none of that.
[[nodiscard]] std::string to_hexadecimal(std::span<const std::byte> bytes);
[[nodiscard]] std::optional<std::vector<std::byte>> from_hexadecimal(std::string_view text);

}  // namespace troupe
