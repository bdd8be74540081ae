#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::engine {

// Which samples are read when. Pure functions of their arguments: any (epoch, batch) can be found
// again after a restart without replaying the ones before it, on every platform alike.

/// The order in which an epoch visits `samples` samples: 0, 1, 2 ... or, shuffled, a Fisher-Yates
/// permutation drawn by SplitMix64 from (seed, epoch).
[[nodiscard]] std::vector<std::int64_t> epoch_order(std::int64_t samples, std::uint64_t seed,
                                                    std::uint64_t epoch, bool shuffle);

/// Batches in an epoch; the last one may be smaller. `batch_size` at least 1.
[[nodiscard]] std::int64_t batch_count(std::int64_t samples, std::int64_t batch_size);

/// Batch number `index` of an epoch, a view into `order`; empty past the last batch.
[[nodiscard]] std::span<const std::int64_t> batch_of(std::span<const std::int64_t> order,
                                                     std::int64_t batch_size, std::int64_t index);

/// How a batch is cut into micro-batches: sizes as even as can be, the larger ones first, as
/// torch.tensor_split does. Errors: bad_config naming both numbers, where there are more
/// micro-batches than samples or fewer than one.
[[nodiscard]] result<std::vector<std::int64_t>> microbatch_sizes(std::int64_t samples,
                                                                 std::int64_t microbatches);

}  // namespace troupe::engine
