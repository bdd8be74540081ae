#pragma once

#include <vector>

#include "engine/parameter_server/batch.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// Whether every gradient fits its parameter of a shard. Errors: bad_data naming the parameter and
/// both shapes or types, or the index of one that is unknown or given twice.
[[nodiscard]] result<void> check_gradients(const tensor_batch& gradients,
                                           const std::vector<parameter_entry>& directory);

}  // namespace troupe::engine
