#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace troupe::cluster {

/// Cuts a stream of bytes into lines. A line longer than `longest_line_bytes` comes in pieces, so
/// that a child without newlines cannot fill our memory.
class line_splitter {
 public:
  using sink = std::function<void(std::string_view line)>;
  static constexpr std::size_t longest_line_bytes = 1 << 16;

  /// Hands out every line that these bytes complete, without its newline.
  void feed(std::string_view bytes, const sink& out);
  /// Hands out a last line that has no newline.
  void finish(const sink& out);

 private:
  std::string rest_;
};

}  // namespace troupe::cluster
