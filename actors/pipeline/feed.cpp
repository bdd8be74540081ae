#include "actors/pipeline/feed.hpp"

#include <algorithm>

#include <caf/send.hpp>

#include "engine/data/sampler.hpp"

namespace troupe::actors {

std::uint32_t feed(const engine::batch& batch, const engine::step_key& step,
                   std::uint32_t microbatches, const stage_actor& first, const stage_actor& last) {
  const auto images = batch.images.size(0);
  const auto count = std::min<std::int64_t>(images, microbatches);
  const auto sizes = engine::microbatch_sizes(images, count);
  std::int64_t begin = 0;
  for (std::uint32_t i = 0; i < sizes->size(); ++i) {
    const microbatch_key key{step, {i}};
    const auto size = (*sizes)[i];
    caf::anon_send(first, activation{key, batch.images.narrow(0, begin, size)});
    caf::anon_send(last, target{key, batch.labels.narrow(0, begin, size)});
    begin += size;
  }
  return static_cast<std::uint32_t>(count);
}

}  // namespace troupe::actors
