#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/schedule/plan.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// A stage's actions as numbers, one each, for messages.
[[nodiscard]] std::vector<std::int32_t> pack(const std::vector<action>& actions);

/// What `pack` made; whether it is a sound plan is for `check_stage` to say. Errors: bad_frame for
/// a number that is no action, or more of them than any plan has.
[[nodiscard]] result<std::vector<action>> unpack(std::span<const std::int32_t> numbers);

}  // namespace troupe::engine
