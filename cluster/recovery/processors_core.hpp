#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

namespace troupe::cluster {

/// Whether stages continue on other processors than they began on, which may add up in another
/// order: a pure state machine. It is reported once per run.
class processors_core {
 public:
  /// The stage in this place computes on that processor from now on; empty: not on a CPU. Returns
  /// the processor that it began on, if that is another and nothing was reported yet.
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
