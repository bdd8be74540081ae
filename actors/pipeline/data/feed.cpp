#include "actors/pipeline/data/feed.hpp"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "actors/arrivals/cheap_actors.hpp"
#include "actors/base/failure.hpp"
#include "actors/base/same_actor.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/data.hpp"
#include "actors/messages/flow.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/recovery/departed_core.hpp"
#include "engine/collective/norm/norm_groups.hpp"
#include "engine/collective/shares.hpp"
#include "engine/step/credits.hpp"
#include "messages/base/log.hpp"

namespace troupe::actors {
namespace {

using engine::edge;
using engine::edge_place;

/// What one end of the pipeline is fed with.
struct feed_edge {
  engine::credited_queue order;
  stage_actor to = {};
  std::uint32_t chunk = 0;                        // of that stage
  std::map<edge_place, at::Tensor> waiting = {};  // [n, ...]; or logged
  std::set<engine::step_key> logged = {};         // steps that may have to be fed again

  /// What is sent now.
  at::Tensor take(const edge_place& what) {
    if (logged.contains(what.key)) return waiting.at(what);
    return waiting.extract(what).mapped();
  }
};

struct feeder_state {
  feed_edge inputs{engine::credited_queue(engine::default_credits)};
  feed_edge labels{engine::credited_queue(engine::default_credits)};
  epoch_id epoch;
  bool logs = false;
  departed_core<caf::strong_actor_ptr, same_actor> departed;
};

using feeder_pointer = feeder_actor::stateful_pointer<feeder_state>;

void send_due(feeder_pointer self, feed_edge& on, const std::vector<edge_place>& due) {
  for (const auto& what : due) {
    const microbatch_key key{what.key, what.microbatch, on.chunk};
    if (&on == &self->state.labels)
      self->send(on.to, target{key, on.take(what)});
    else
      self->send(on.to, activation{key, on.take(what)});
  }
}

void start_epoch(feed_edge& edge, epoch_id epoch) {
  edge.order.start_epoch(epoch);
  edge.waiting.clear();
  edge.logged.clear();
}

void forget_before(feed_edge& edge, const engine::step_key& first) {
  edge.order.forget_before(first);
  edge.logged.erase(edge.logged.begin(), edge.logged.lower_bound(first));
  edge.waiting.erase(edge.waiting.begin(), edge.waiting.lower_bound({first, {}}));
}

void forget(feed_edge& edge, const engine::step_key& key) {
  edge.order.forget(key);
  edge.logged.erase(key);
  std::erase_if(edge.waiting, [&](const auto& each) { return each.first.key == key; });
}

void on_batch(feeder_pointer self, const feed_batch& batch) {
  auto& state = self->state;
  if (batch.step.epoch > state.epoch) {
    state.epoch = batch.step.epoch;
    start_epoch(state.inputs, state.epoch);
    start_epoch(state.labels, state.epoch);
  }
  for (auto* const edge : {&state.inputs, &state.labels})
    if (state.logs) edge->logged.insert(batch.step);
  for (std::uint32_t i = 0; i < batch.inputs.size(); ++i) {
    const edge_place what{batch.step, {i}};
    state.inputs.waiting.emplace(what, batch.inputs[i]);
    state.labels.waiting.emplace(what, batch.labels[i]);
    send_due(self, state.inputs, state.inputs.order.offer(what, state.logs));
    send_due(self, state.labels, state.labels.order.offer(what, state.logs));
  }
}

void on_credit(feeder_pointer self, const credit& granted) {
  if (self->state.departed.has_departed(self->current_sender())) return;
  auto& from = granted.on == edge::target ? self->state.labels : self->state.inputs;
  const auto due = from.order.credited({granted.key.step, granted.key.microbatch});
  if (!due) return log::warning("feeder: " + due.error().text);
  send_due(self, from, *due);
}

/// The new stage is sent at once what it needs: the other stages know it.
acknowledged on_replace(feeder_pointer self, const replace_neighbour& what) {
  auto& state = self->state;
  state.departed.replaced(what.lost);
  for (auto* const each : {&state.inputs, &state.labels}) {
    if (!is_same_actor(each->to, what.lost)) continue;
    each->to = caf::actor_cast<stage_actor>(what.by);
    each->order.start_over(what.from);
    send_due(self, *each, each->order.resume());
  }
  return {};
}

feeder_actor::behavior_type feeder_behavior(feeder_pointer self, stage_actor first,
                                            stage_actor last, std::uint32_t last_chunk,
                                            std::uint32_t credits, bool logs) {
  end_when_thrown(*self, "the feeder of batches");
  self->state.inputs = {engine::credited_queue(credits), std::move(first)};
  self->state.labels = {engine::credited_queue(credits), std::move(last), last_chunk};
  self->state.logs = logs;
  return {
      [self](const feed_batch& batch) { on_batch(self, batch); },
      [self](const credit& granted) { on_credit(self, granted); },
      [self](const replace_neighbour& what) { return on_replace(self, what); },
      [self](const forget_fed& what) {
        for (auto* const edge : {&self->state.inputs, &self->state.labels}) {
          forget_before(*edge, what.first);
          for (const auto& each : what.evaluations) forget(*edge, each.key);
        }
      },
  };
}

/// Micro-batches `which` of a batch, one after the other.
engine::batch join_members(const std::vector<engine::batch>& parts,
                           const std::vector<engine::group_member>& which) {
  if (which.size() == 1) return parts[which.front().of_batch];
  std::vector<at::Tensor> inputs, labels;
  for (const auto& each : which) {
    inputs.push_back(parts[each.of_batch].inputs);
    labels.push_back(parts[each.of_batch].labels);
  }
  return {at::cat(inputs), labels.front().defined() ? at::cat(labels) : at::Tensor()};
}

}  // namespace

feeder_actor spawn_feeder(caf::actor_system& system, stage_actor first, stage_actor last,
                          std::uint32_t last_chunk, std::uint32_t credits, bool logs) {
  auto made =
      system.spawn(feeder_behavior, std::move(first), std::move(last), last_chunk, credits, logs);
  declare_cheap(caf::actor_cast<caf::strong_actor_ptr>(made));  // it hands tensors on as they are
  return made;
}

std::uint32_t feed(const engine::batch& batch, const engine::step_key& step,
                   std::uint32_t microbatches, const std::vector<feeder_actor>& feeders,
                   engine::step_kind kind, std::uint32_t grouped) {
  const auto parts =
      engine::split_batch(batch, std::min<std::int64_t>(batch.inputs.size(0), microbatches));
  if (!parts) return 0;
  const auto count = static_cast<std::uint32_t>(parts->size());
  const auto replicas = static_cast<std::uint32_t>(feeders.size());
  for (std::uint32_t replica = 0; replica < replicas; ++replica) {
    const auto mine = engine::share_of_batch(count, replica, replicas);
    if (mine.size() == 0) continue;
    const bool trains = kind == engine::step_kind::training;
    const auto own = trains && grouped > 0
                         ? batches_of_groups(*parts, replica, replicas, grouped)
                         : std::vector(parts->begin() + static_cast<std::ptrdiff_t>(mine.first),
                                       parts->begin() + static_cast<std::ptrdiff_t>(mine.last));
    feed_batch message{step, {}, {}};
    for (const auto& each : own) {
      message.inputs.push_back(each.inputs);
      message.labels.push_back(each.labels);
    }
    caf::anon_send(feeders[replica], std::move(message));
  }
  return count;
}

std::vector<engine::batch> batches_of_groups(const std::vector<engine::batch>& parts,
                                             std::uint32_t replica, std::uint32_t replicas,
                                             std::uint32_t logical) {
  const auto count = static_cast<std::uint32_t>(parts.size());
  const engine::norm_groups groups(engine::shares_of_batch(count, logical), replica, replicas);
  std::vector<engine::batch> all;
  for (std::uint32_t i = 0; i < groups.count(); ++i)
    all.push_back(join_members(parts, groups.members(i)));
  return all;
}

}  // namespace troupe::actors
