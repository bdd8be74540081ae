#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "messages/base/ids.hpp"

namespace troupe::engine {

/// Which step of which epoch; the order of time. Every announced step takes a number of its own,
/// evaluation steps too.
struct step_key {
  epoch_id epoch;
  step_id step;

  auto operator<=>(const step_key&) const = default;
};

/// How many steps may arrive at a stage before the first of them is announced to it.
inline constexpr std::uint64_t steps_ahead = 2;

/// "step 3 of epoch 1".
[[nodiscard]] std::string to_string(const step_key& key);

}  // namespace troupe::engine
