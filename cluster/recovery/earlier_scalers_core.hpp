#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "engine/step/loss_scaler.hpp"

namespace troupe::cluster {

/// Knows the dynamic loss scale behind each version that all stages may go back to: a pure state
/// machine. Stages that have just begun know it from their first version on. If another one is lost
/// before that version is with all its keepers, only the version before it may be left, and its
/// scale is known only to the stages that went back first.
class earlier_scalers_core {
 public:
  /// What the stages that have to go back know; nothing of steps before they began.
  using teller = std::function<std::optional<engine::loss_scaler>(std::uint64_t step)>;

  /// The loss scaler after `step`, behind which all stages go on. `update`: training steps between
  /// two versions. Nothing where nobody has known it.
  [[nodiscard]] std::optional<engine::loss_scaler> go_back(std::uint64_t step, std::uint32_t update,
                                                           const teller& tell) {
    auto before = std::exchange(scalers_, {});
    const auto keep = [&](std::uint64_t each) {
      if (const auto told = tell(each))
        scalers_.emplace(each, *told);
      else if (const auto found = before.find(each); found != before.end())
        scalers_.insert(*found);
    };
    keep(step);
    if (step >= update) keep(step - update);
    const auto found = scalers_.find(step);
    return found == scalers_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::map<std::uint64_t, engine::loss_scaler> scalers_;  // by step; of two versions
};

}  // namespace troupe::cluster
