#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/messages/mirror.hpp"
#include "engine/base/named_tensor.hpp"
#include "messages/base/error.hpp"
#include "optimizers/optimizer.hpp"

/// A stage's version, computed again from the version before by whoever keeps it.
namespace troupe::actors {

/// Under which name a parameter's gradient stands among tensors of an update: that of a slot of the
/// optimizer's state, so no parameter and no buffer has it.
[[nodiscard]] std::string gradient_name(const std::string& parameter);

/// A checksum of a stage's version, of its tensors' names and of their bytes as they lie in memory,
/// whatever the order of tensors; that of two lists together is the sum of theirs. It detects
/// mistakes of arithmetic and is no protection against intent. One pass over memory.
[[nodiscard]] std::uint64_t digest_of(const std::vector<engine::named_tensor>& tensors);

/// The version after an update, which has the same tensors in the same order, and after each
/// parameter its state. `update`: as in store_update. What the update does not change is the same
/// tensor in both versions; nothing of `before` is written. In the calling thread. Errors:
/// bad_config for an unknown optimizer, or options and gradients that do not fit it; bad_data for
/// tensors that `before` does not have; handler_failed where the arithmetic threw.
[[nodiscard]] result<std::vector<engine::named_tensor>> repeat_update(
    const std::vector<engine::named_tensor>& before,
    const std::vector<engine::named_tensor>& update, const update_terms& terms,
    const optimizers::registry& known);

}  // namespace troupe::actors
