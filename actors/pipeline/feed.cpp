#include "actors/pipeline/feed.hpp"

#include <algorithm>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <map>
#include <utility>
#include <vector>

#include "actors/messages/data.hpp"
#include "actors/messages/flow.hpp"
#include "engine/collective/shares.hpp"
#include "engine/step/credits.hpp"
#include "messages/base/log.hpp"

namespace troupe::actors {
namespace {

using engine::edge;
using engine::edge_place;

/// What one end of the pipeline is fed with.
struct feed_edge {
  explicit feed_edge(std::uint32_t credits) : order(credits) {}

  engine::credited_queue order;
  std::map<edge_place, at::Tensor> waiting;  // [n, ...]
};

struct feeder_state {
  feed_edge inputs{engine::default_credits};
  feed_edge labels{engine::default_credits};
  epoch_id epoch;
  stage_actor first;
  stage_actor last;
  std::uint32_t last_chunk = 0;
};

using feeder_pointer = feeder_actor::stateful_pointer<feeder_state>;

void send_inputs(feeder_pointer self, const std::vector<edge_place>& due) {
  for (const auto& what : due)
    self->send(self->state.first, activation{{what.key, what.microbatch},
                                             self->state.inputs.waiting.extract(what).mapped()});
}

void send_labels(feeder_pointer self, const std::vector<edge_place>& due) {
  for (const auto& what : due)
    self->send(self->state.last, target{{what.key, what.microbatch, self->state.last_chunk},
                                        self->state.labels.waiting.extract(what).mapped()});
}

void start_epoch(feed_edge& edge, epoch_id epoch) {
  edge.order.start_epoch(epoch);
  edge.waiting.clear();
}

void on_batch(feeder_pointer self, const feed_batch& batch) {
  auto& state = self->state;
  if (batch.step.epoch > state.epoch) {
    state.epoch = batch.step.epoch;
    start_epoch(state.inputs, state.epoch);
    start_epoch(state.labels, state.epoch);
  }
  for (std::uint32_t i = 0; i < batch.inputs.size(); ++i) {
    const edge_place what{batch.step, {i}};
    state.inputs.waiting.emplace(what, batch.inputs[i]);
    state.labels.waiting.emplace(what, batch.labels[i]);
    send_inputs(self, state.inputs.order.offer(what));
    send_labels(self, state.labels.order.offer(what));
  }
}

void on_credit(feeder_pointer self, const credit& granted) {
  const bool of_labels = granted.on == edge::target;
  auto& from = of_labels ? self->state.labels : self->state.inputs;
  const auto due = from.order.credited({granted.key.step, granted.key.microbatch});
  if (!due) return log::warning("feeder: " + due.error().text);
  of_labels ? send_labels(self, *due) : send_inputs(self, *due);
}

feeder_actor::behavior_type feeder_behavior(feeder_pointer self, stage_actor first,
                                            stage_actor last, std::uint32_t last_chunk,
                                            std::uint32_t credits) {
  self->state.inputs = feed_edge(credits);
  self->state.labels = feed_edge(credits);
  self->state.first = std::move(first);
  self->state.last = std::move(last);
  self->state.last_chunk = last_chunk;
  return {
      [self](const feed_batch& batch) { on_batch(self, batch); },
      [self](const credit& granted) { on_credit(self, granted); },
  };
}

}  // namespace

feeder_actor spawn_feeder(caf::actor_system& system, stage_actor first, stage_actor last,
                          std::uint32_t last_chunk, std::uint32_t credits) {
  return system.spawn(feeder_behavior, std::move(first), std::move(last), last_chunk, credits);
}

std::uint32_t feed(const engine::batch& batch, const engine::step_key& step,
                   std::uint32_t microbatches, const std::vector<feeder_actor>& feeders) {
  const auto parts =
      engine::split_batch(batch, std::min<std::int64_t>(batch.inputs.size(0), microbatches));
  if (!parts) return 0;
  const auto count = static_cast<std::uint32_t>(parts->size());
  const auto replicas = static_cast<std::uint32_t>(feeders.size());
  for (std::uint32_t replica = 0; replica < replicas; ++replica) {
    const auto mine = engine::share_of_batch(count, replica, replicas);
    if (mine.size() == 0) continue;
    feed_batch message{step, {}, {}};
    for (auto i = mine.first; i < mine.last; ++i) {
      message.inputs.push_back((*parts)[i].inputs);
      message.labels.push_back((*parts)[i].labels);
    }
    caf::anon_send(feeders[replica], std::move(message));
  }
  return count;
}

}  // namespace troupe::actors
