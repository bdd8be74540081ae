#include "actors/pipeline/data_actor.hpp"

#include <ATen/Parallel.h>

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <exception>
#include <span>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/detached.hpp"
#include "actors/messages/data.hpp"
#include "actors/pipeline/feed.hpp"
#include "engine/base/torch_error.hpp"

namespace troupe::actors {
namespace {

struct data_state {
  std::shared_ptr<const engine::dataset> source;
  feeder_actor feeder;
};

using self_pointer = data_actor::stateful_pointer<data_state>;

result<batch_delivered> deliver(const data_state& state, const deliver_batch& order) try {
  const auto indices = order.indices.contiguous();
  const auto batch = state.source->read(
      order.test ? engine::split::test : engine::split::train,
      std::span(indices.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(indices.numel())));
  if (!batch) return tl::unexpected(batch.error());
  if (batch->inputs.size(0) == 0)
    return fail(errc::bad_data, "no sample of a whole batch could be read");
  const auto sent = feed(*batch, order.step, order.microbatches, state.feeder);
  return batch_delivered{order.step, batch->inputs.size(0), sent, state.source->skipped()};
} catch (const std::exception& problem) {
  return fail(errc::handler_failed,
              std::string("reading a batch failed: ") + engine::reason_of(problem));
}

data_actor::behavior_type data_behavior(self_pointer self,
                                        std::shared_ptr<const engine::dataset> source,
                                        feeder_actor feeder) {
  static_cast<void>(at::get_num_threads());
  at::set_num_threads(1);
  self->state = {std::move(source), std::move(feeder)};
  return {[self](const deliver_batch& order) -> caf::result<batch_delivered> {
    auto delivered = deliver(self->state, order);
    if (!delivered) return to_caf(delivered.error());
    return *delivered;
  }};
}

}  // namespace

data_actor spawn_data(caf::actor_system& system, std::shared_ptr<const engine::dataset> source,
                      feeder_actor feeder) {
  return spawn_detached(system, "the reading of data", data_behavior, std::move(source),
                        std::move(feeder));
}

}  // namespace troupe::actors
