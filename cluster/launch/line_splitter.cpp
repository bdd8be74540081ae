#include "cluster/launch/line_splitter.hpp"

#include <algorithm>

namespace troupe::cluster {

void line_splitter::feed(std::string_view bytes, const sink& out) {
  while (!bytes.empty()) {
    const std::size_t room = longest_line_bytes - rest_.size();
    const std::size_t newline = bytes.find('\n');
    const bool is_whole = newline != std::string_view::npos && newline <= room;
    const std::size_t taken = is_whole ? newline : std::min(bytes.size(), room);
    rest_ += bytes.substr(0, taken);
    bytes.remove_prefix(taken + (is_whole ? 1 : 0));
    if (is_whole || rest_.size() == longest_line_bytes) {
      out(rest_);
      rest_.clear();
    }
  }
}

void line_splitter::finish(const sink& out) {
  if (rest_.empty()) return;
  out(rest_);
  rest_.clear();
}

}  // namespace troupe::cluster
