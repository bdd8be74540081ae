#include "actors/pipeline/data/data_actor.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <exception>
#include <iterator>
#include <string>
#include <utility>

#include "actors/base/failure.hpp"
#include "actors/detached.hpp"
#include "actors/messages/data.hpp"
#include "actors/pipeline/data/feed.hpp"
#include "engine/base/torch_error.hpp"

namespace troupe::actors {
namespace {

struct data_state {
  std::shared_ptr<const engine::dataset> source;
  std::vector<feeder_actor> feeders;  // by replica
  std::uint32_t grouped = 0;          // see `feed`
  engine::skipped_samples before;     // by others
};

using data_pointer = data_actor::stateful_pointer<data_state>;

constexpr auto reading = "the reading of data";

/// `indices`: [N] i64. `without`: [n] i64, or undefined; they are left out, and not counted again.
result<engine::partial_batch> read(const data_state& state, bool test, const at::Tensor& indices,
                                   const at::Tensor& without = {}) try {
  auto wanted = to_list(indices);
  const auto known = to_list(without);
  std::erase_if(wanted, [&known](std::int64_t each) {
    return std::ranges::find(known, each) != known.end();
  });
  auto all = state.source->read_partly(test ? engine::split::test : engine::split::train, wanted);
  // A run that was begun with these data fails, and nothing that the user gave is refused.
  if (!all && all.error().code == errc::io_failed)
    return fail(errc::handler_failed, all.error().text);
  if (all) all->left_out.insert(all->left_out.begin(), known.begin(), known.end());
  return all;
} catch (const std::exception& problem) {
  return fail(errc::handler_failed,
              std::string("reading a batch failed: ") + engine::reason_of(problem));
}

result<batch_delivered> deliver(data_pointer self, const deliver_batch& order) {
  const auto& state = self->state;
  if (state.feeders.empty())
    return fail(errc::bad_config, "batches are read for nobody: not connected");
  const auto all = read(state, order.test, order.indices, order.left_out);
  if (!all) return tl::unexpected(all.error());
  const auto& [batch, left_out] = *all;
  if (batch.inputs.size(0) == 0)
    return fail(errc::bad_data, "no sample of a whole batch could be read");
  const auto sent =
      feed(batch, order.step, order.microbatches, state.feeders,
           order.test ? engine::step_kind::evaluation : engine::step_kind::training, state.grouped);
  return batch_delivered{.step = order.step,
                         .samples = batch.inputs.size(0),
                         .microbatches = sent,
                         .skipped = state.before.times + state.source->skipped(),
                         .left_out = left_out.empty() ? at::Tensor() : to_tensor(left_out)};
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

/// Of both, as many as are told.
std::vector<std::int64_t> merged(const std::vector<std::int64_t>& one,
                                 const std::vector<std::int64_t>& other) {
  std::vector<std::int64_t> all;
  std::ranges::set_union(one, other, std::back_inserter(all));
  all.resize(std::min(all.size(), engine::most_left_out_told));
  return all;
}

result<data_described> describe(data_pointer self, const describe_data& order) {
  const auto& state = self->state;
  const auto& source = *state.source;
  auto digest = order.digested ? source.digest() : result<std::string>(std::string());
  if (!digest) return tl::unexpected(digest.error());
  const auto left_out = source.left_out();
  if (!left_out) return tl::unexpected(left_out.error());
  return data_described{.train_size = source.size(engine::split::train),
                        .test_size = source.size(engine::split::test),
                        .classes = source.classes(),
                        .sample_shape = source.sample_shape(),
                        .labels_per_sample = source.labels_per_sample(),
                        .skipped = state.before.times + source.skipped(),
                        .left_out_train = merged(state.before.which.train, left_out->train),
                        .left_out_test = merged(state.before.which.test, left_out->test),
                        .digest = std::move(*digest)};
}

result<samples_read> read_asked(data_pointer self, const read_samples& order) {
  return read(self->state, order.test, order.indices).map([](const auto& all) {
    return samples_read{all.readable.inputs, all.readable.labels};
  });
}

data_actor::behavior_type data_behavior(data_pointer self,
                                        std::shared_ptr<const engine::dataset> source,
                                        std::vector<feeder_actor> feeders, std::uint32_t grouped,
                                        engine::skipped_samples before) {
  static_cast<void>(at::get_num_threads());
  at::set_num_threads(1);
  self->state = {std::move(source), std::move(feeders), grouped, std::move(before)};
  const guarding guarded(self, reading);  // as where there is no memory for a joined micro-batch
  return {
      guarded(connect),
      guarded(deliver),
      guarded(describe),
      guarded(read_asked),
  };
}

}  // namespace

data_actor spawn_data(caf::actor_system& system, std::shared_ptr<const engine::dataset> source,
                      std::vector<feeder_actor> feeders, std::uint32_t grouped,
                      engine::skipped_samples before) {
  return spawn_detached(system, reading, data_behavior, std::move(source), std::move(feeders),
                        grouped, std::move(before));
}

}  // namespace troupe::actors
