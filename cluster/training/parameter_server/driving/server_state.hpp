#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cluster/training/saving/checkpoint.hpp"
#include "engine/base/named_tensor.hpp"
#include "engine/parameter_server/parts.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

// What a parameter server's checkpoint has in its file of state beside the weights: the optimizer's
// state of whole parameters, however shards have cut them, with the rows of tables that have one
// (see engine::seen_rows_name), and under "worker.N.NAME" the buffers of each worker whose own are
// not in the file of weights.

/// What a shard owns, in its order.
using shard_part = std::vector<engine::owned_parameter>;

/// The state of whole parameters. `parts[i]` is what the shard owns whose state is `states[i]`, as
/// it was read there. Rows of which no shard has a state are 0. Errors: bad_data for a name that is
/// none of the shard's.
[[nodiscard]] result<std::vector<engine::named_tensor>> join_states(
    const std::vector<shard_part>& parts,
    const std::vector<std::vector<engine::named_tensor>>& states);

/// The opposite, for one of the shards: what it is to be restored with. A table of which a file
/// does not say which rows have a state has one of each. Errors: bad_data, of reading.
[[nodiscard]] result<std::vector<engine::named_tensor>> state_of_part(
    const checkpoint& from, const std::vector<shard_part>& parts, std::size_t shard);

/// A worker's buffer in the file of state.
[[nodiscard]] std::string buffer_name(std::size_t worker, const std::string& buffer);

/// The buffers that a worker begins with: its own, or else those beside the weights. Errors:
/// bad_data, of reading.
[[nodiscard]] result<std::vector<engine::named_tensor>> buffers_of(const checkpoint& from,
                                                                   const engine::model& layers,
                                                                   std::size_t worker);

}  // namespace troupe::cluster
