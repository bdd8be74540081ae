#include "engine/data/sampler.hpp"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <string>
#include <utility>

#include "engine/base/random.hpp"

namespace troupe::engine {

std::vector<std::int64_t> epoch_order(std::int64_t samples, std::uint64_t seed, std::uint64_t epoch,
                                      bool shuffle) {
  assert(samples >= 0);
  std::vector<std::int64_t> order(static_cast<std::size_t>(samples));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!shuffle) return order;
  splitmix64 random(splitmix64::combine(seed, epoch));
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[random.below(left)]);
  return order;
}

std::int64_t batch_count(std::int64_t samples, std::int64_t batch_size) {
  assert(samples >= 0 && batch_size >= 1);
  return samples / batch_size + (samples % batch_size == 0 ? 0 : 1);
}

std::span<const std::int64_t> batch_of(std::span<const std::int64_t> order, std::int64_t batch_size,
                                       std::int64_t index) {
  assert(batch_size >= 1 && index >= 0);
  const auto samples = static_cast<std::int64_t>(order.size());
  if (index >= batch_count(samples, batch_size)) return {};
  const auto begin = index * batch_size;
  const auto size = std::min(batch_size, samples - begin);
  return order.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
}

result<std::vector<std::int64_t>> microbatch_sizes(std::int64_t samples,
                                                   std::int64_t microbatches) {
  if (microbatches < 1 || microbatches > samples)
    return fail(errc::bad_config, "cannot cut a batch of " + std::to_string(samples) +
                                      " samples into " + std::to_string(microbatches) +
                                      " micro-batches: choose 1 to as many as it has samples");
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(microbatches), samples / microbatches);
  for (std::int64_t i = 0; i < samples % microbatches; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

}  // namespace troupe::engine
