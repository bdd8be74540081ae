#include "actors/pipeline/data_actor.hpp"

#include <ATen/Parallel.h>

#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <exception>
#include <span>
#include <string>
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
  std::vector<feeder_actor> feeders;  // by replica
  std::uint32_t grouped = 0;          // see `feed`
};

using data_pointer = data_actor::stateful_pointer<data_state>;

/// `indices`: [N] i64.
result<engine::batch> read(const data_state& state, bool test, const at::Tensor& indices) try {
  const auto row = indices.contiguous();
  return state.source->read(
      test ? engine::split::test : engine::split::train,
      std::span(row.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(row.numel())));
} catch (const std::exception& problem) {
  return fail(errc::handler_failed,
              std::string("reading a batch failed: ") + engine::reason_of(problem));
}

result<batch_delivered> deliver(const data_state& state, const deliver_batch& order) {
  if (state.feeders.empty())
    return fail(errc::bad_config, "batches are read for nobody: not connected");
  const auto batch = read(state, order.test, order.indices);
  if (!batch) return tl::unexpected(batch.error());
  if (batch->inputs.size(0) == 0)
    return fail(errc::bad_data, "no sample of a whole batch could be read");
  const auto sent =
      feed(*batch, order.step, order.microbatches, state.feeders,
           order.test ? engine::step_kind::evaluation : engine::step_kind::training, state.grouped);
  return batch_delivered{order.step, batch->inputs.size(0), sent, state.source->skipped()};
}

/// With the first replica a pipeline begins, or feeds its steps again, by feeders that have sent
/// nothing yet.
result<data_connected> connect(data_pointer self, const connect_data& order) {
  auto& state = self->state;
  if (order.replica == 0)
    for (const auto& each : std::exchange(state.feeders, {}))
      caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  if (order.replica != state.feeders.size())
    return fail(errc::bad_config, "the data feed replica " + std::to_string(order.replica) +
                                      " of a pipeline already, or not yet the one before it");
  const auto feeder = spawn_feeder(self->system(), caf::actor_cast<stage_actor>(order.first),
                                   caf::actor_cast<stage_actor>(order.last), order.last_chunk,
                                   order.credits, order.logs);
  state.feeders.push_back(feeder);
  state.grouped = order.grouped;
  self->attach_functor([feeder] { caf::anon_send_exit(feeder, caf::exit_reason::user_shutdown); });
  return data_connected{caf::actor_cast<caf::strong_actor_ptr>(feeder)};
}

result<data_described> describe(const engine::dataset& source, bool digested) {
  auto digest = digested ? source.digest() : result<std::string>(std::string());
  if (!digest) return tl::unexpected(digest.error());
  auto left_out = source.left_out();
  if (!left_out) return tl::unexpected(left_out.error());
  return data_described{.train_size = source.size(engine::split::train),
                        .test_size = source.size(engine::split::test),
                        .classes = source.classes(),
                        .sample_shape = source.sample_shape(),
                        .labels_per_sample = source.labels_per_sample(),
                        .skipped = source.skipped(),
                        .left_out_train = std::move(left_out->train),
                        .left_out_test = std::move(left_out->test),
                        .digest = std::move(*digest)};
}

template <class Answer>
caf::result<Answer> answer(result<Answer> given) {
  if (!given) return to_caf(given.error());
  return std::move(*given);
}

data_actor::behavior_type data_behavior(data_pointer self,
                                        std::shared_ptr<const engine::dataset> source,
                                        std::vector<feeder_actor> feeders, std::uint32_t grouped) {
  static_cast<void>(at::get_num_threads());
  at::set_num_threads(1);
  self->state = {std::move(source), std::move(feeders), grouped};
  return {
      [self](const connect_data& order) { return answer(connect(self, order)); },
      [self](const deliver_batch& order) { return answer(deliver(self->state, order)); },
      [self](const describe_data& order) {
        return answer(describe(*self->state.source, order.digested));
      },
      [self](const read_samples& order) {
        return answer(read(self->state, order.test, order.indices).map([](const auto& batch) {
          return samples_read{batch.inputs, batch.labels};
        }));
      },
  };
}

}  // namespace

data_actor spawn_data(caf::actor_system& system, std::shared_ptr<const engine::dataset> source,
                      std::vector<feeder_actor> feeders, std::uint32_t grouped) {
  return spawn_detached(system, "the reading of data", data_behavior, std::move(source),
                        std::move(feeders), grouped);
}

}  // namespace troupe::actors
