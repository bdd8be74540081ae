#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace troupe::cluster {

/// Which work of stages has thrown before: a pure state machine. A stage whose arithmetic throws is
/// lost and replayed; the same work that throws again would throw for ever, and ends the run.
class throws_core {
 public:
  /// The last ones. So many throws of other work lie far apart: a run that makes no progress ends
  /// before (return_core::most_in_vain).
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
