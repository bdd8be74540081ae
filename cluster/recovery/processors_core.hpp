#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

namespace troupe::cluster {

/// Whether stages go on on other processors than they began on, which may add up in another order:
/// a pure state machine. That is said once in a run.
class processors_core {
 public:
  /// The stage in this place computes on that one from here on; empty: on no CPU. Returns the one
  /// that it began on, where that is another and nothing was said yet.
  [[nodiscard]] std::optional<std::string> computes_on(std::size_t place,
                                                       const std::string& processor) {
    if (processor.empty()) return std::nullopt;
    const auto first = first_.try_emplace(place, processor).first->second;
    if (is_said_ || first == processor) return std::nullopt;
    is_said_ = true;
    return first;
  }

 private:
  std::map<std::size_t, std::string> first_;  // by place
  bool is_said_ = false;
};

}  // namespace troupe::cluster
