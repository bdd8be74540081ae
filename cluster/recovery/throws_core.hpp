#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace troupe::cluster {

/// Remembers which work of stages has thrown: a pure state machine. A stage whose arithmetic throws
/// is ended and replayed; if the same work throws again it would throw for ever, and the run ends.
class throws_core {
 public:
  /// Only the last ones are remembered, which is enough: a run that makes no progress ends before
  /// there are so many (return_core::most_in_vain).
  static constexpr std::size_t most_remembered = 64;

  /// Some work has thrown. `work`: its name, with stage and step. Returns the reason of its first
  /// throw; nothing: this is the first.
  [[nodiscard]] std::optional<std::string> threw(const std::string& work,
                                                 const std::string& reason) {
    const auto before = std::ranges::find(thrown_, work, &entry::first);
    if (before != thrown_.end()) return before->second;
    thrown_.emplace_back(work, reason);
    if (thrown_.size() > most_remembered) thrown_.pop_front();
    return std::nullopt;
  }

 private:
  using entry = std::pair<std::string, std::string>;

  std::deque<entry> thrown_;  // work and reason
};

}  // namespace troupe::cluster
