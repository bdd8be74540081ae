#include "actors/pipeline/feed.hpp"

#include <algorithm>

#include <caf/send.hpp>

namespace troupe::actors {

std::uint32_t feed(const engine::batch& batch, const engine::step_key& step,
                   std::uint32_t microbatches, const stage_actor& first, const stage_actor& last) {
  const auto parts =
      engine::split_batch(batch, std::min<std::int64_t>(batch.images.size(0), microbatches));
  if (!parts) return 0;
  for (std::uint32_t i = 0; i < parts->size(); ++i) {
    const microbatch_key key{step, {i}};
    caf::anon_send(first, activation{key, (*parts)[i].images});
    caf::anon_send(last, target{key, (*parts)[i].labels});
  }
  return static_cast<std::uint32_t>(parts->size());
}

}  // namespace troupe::actors
