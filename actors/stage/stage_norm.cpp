#include "actors/stage/stage_norm.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "actors/base/errors.hpp"
#include "engine/data/sampler.hpp"

namespace troupe::actors {
namespace {

at::Tensor to_tensor(const engine::norm_part& part) {
  auto numbers = at::empty({static_cast<std::int64_t>(part.size())}, at::kDouble);
  std::ranges::copy(part, numbers.mutable_data_ptr<double>());
  return numbers;
}

result<engine::norm_part> part_of(const replica_norm& from) {
  const auto& numbers = from.numbers;
  if (!numbers.defined() || numbers.dim() != 1 || numbers.scalar_type() != at::kDouble ||
      from.what > engine::norm_sum::gradients)
    return fail(errc::bad_frame, "replica " + std::to_string(from.from) + "'s part of " +
                                     engine::to_string(from.at) + " is no list of numbers");
  const auto all = numbers.contiguous();
  const auto* const first = all.const_data_ptr<double>();
  return engine::norm_part(first, first + all.numel());
}

void follow(stage_pointer self, const result<engine::norm_effects>& effects,
            const norm_given* own = nullptr) {
  auto& state = self->state;
  // What another replica sent before it heard that a third is gone: no step is left to fail.
  if (!effects && effects.error().code == errc::peer_lost && state.steps.empty()) return;
  if (!effects) return fail_all(self, effects.error());
  for (const auto& effect : *effects) {
    if (const auto* sum = std::get_if<engine::norm_summed>(&effect)) {
      state.norm.meeting->answer(sum->sum);
      continue;
    }
    const replica_norm message{own->at, state.end.replicas.core.rank(), own->what,
                               to_tensor(own->part)};
    for (const auto rank : std::get<engine::send_norm_part>(effect).to)
      self->send(state.end.replicas.stage_of(rank), message);
  }
}

/// The work thread is idle meanwhile: who is slow is another stage.
template <class Body>
engine::norm_part waiting(engine::activity& doing, const engine::work_item& item, double& waited_s,
                          const Body& body) {
  const auto begin = engine::activity::clock::now();
  doing.withdraw();
  auto sum = body();
  const auto end = engine::activity::clock::now();
  waited_s += std::chrono::duration<double>(end - begin).count();
  doing.begin(item, end);
  return sum;
}

}  // namespace

result<void> join_norms(stage_pointer self, const replica_group& group) {
  auto& state = self->state;
  auto& norm = state.norm;
  give_up_norms(norm, {errc::cancelled, "the stage is connected anew"});
  const auto ranks = state.end.replicas.core.ranks();
  norm = {};
  norm.synced = group.synced_norm;
  if (!norm.synced) return {};
  if (!state.streams->is_cpu())
    return fail(errc::bad_config,
                "batch_norm = \"sync\" sums within actions on the CPU alone, and the stage is on " +
                    state.streams->device().str());
  norm.core = engine::norm_sum_core(state.end.replicas.core.rank(), ranks);
  if (ranks > 1) norm.meeting = std::make_shared<engine::norm_meeting>();
  norm.lanes =
      std::make_shared<engine::norm_lanes>(state.name + " norm", group.logical, state.threads);
  return {};
}

result<std::optional<announced_groups>> groups_of(const stage_state& state,
                                                  const run_stage& order) {
  if (order.norm_shares.empty()) return std::nullopt;
  const auto& replicas = state.end.replicas;
  const auto ranks = replicas.core.ranks();
  const auto own = replicas.logical();
  const auto refuse = [](const std::string& why) { return fail(errc::bad_config, why); };
  if (!state.norm.synced || order.kind != engine::step_kind::training)
    return refuse("a run whose batch norms are synchronized, but the stage's are not");
  if (order.norm_shares.size() != std::size_t{own} * ranks ||
      !std::ranges::equal(
          order.shares,
          std::span(order.norm_shares).subspan(std::size_t{replicas.core.rank()} * own, own)))
    return refuse("a run whose batch norms are synchronized over other replicas than the stage's");
  const auto count = std::reduce(order.norm_shares.begin(), order.norm_shares.end(),
                                 std::int64_t{0}, std::plus<>());
  auto samples = engine::microbatch_sizes(order.batch_size, count);
  if (!samples) return tl::unexpected(samples.error());
  return announced_groups{engine::norm_groups(order.norm_shares, replicas.core.rank(), ranks),
                          std::move(*samples)};
}

std::optional<group_action> group_action_of(stage_pointer self, const announced_step& step,
                                            const engine::start_action& what,
                                            const engine::work_item& item) {
  if (!step.groups) return std::nullopt;
  auto& state = self->state;
  group_action made{.group = {step.groups->of.members(what.what.microbatch.value), {}},
                    .lanes = state.norm.lanes,
                    .exchange = {},
                    .waited_s = std::make_shared<double>(0)};
  for (const auto& each : made.group.members)
    made.group.samples.push_back(step.groups->samples.at(each.of_batch));
  made.exchange =
      [meeting = state.norm.meeting, connection = state.connection, doing = state.doing, item,
       waited_s = made.waited_s, to = caf::actor_cast<stage_actor>(self),
       at = engine::norm_place{.step = what.key,
                               .backward = what.what.kind != engine::action_kind::forward,
                               .chunk = what.what.chunk,
                               .group = what.what.microbatch.value}](
          engine::norm_sum sum, engine::norm_part own) mutable {
        if (!meeting) return own;
        ++at.ordinal;
        return waiting(*doing, item, *waited_s, [&] {
          return meeting->wait([&] {
            caf::anon_send(to, norm_given{at, sum, std::move(own), connection});
          });
        });
      };
  return made;
}

void on_norm_given(stage_pointer self, const norm_given& what) {
  auto& state = self->state;
  const auto step = state.steps.find(what.at.step);
  if (what.connection != state.connection || step == state.steps.end()) return;  // failed
  follow(self,
         state.norm.core.given(what.at, what.what, what.part,
                               step->second.groups->of.ranks_of(what.at.group)),
         &what);
}

void on_replica_norm(stage_pointer self, const replica_norm& from) {
  auto part = part_of(from);
  if (!part) return fail_all(self, part.error());
  follow(self, self->state.norm.core.arrived(from.at, from.from, from.what, std::move(*part)));
}

result<void> lose_norms(stage_pointer self, std::uint32_t rank) {
  return self->state.norm.core.lost(rank);
}

void give_up_norms(norm_state& norm, const error& why) {
  norm.core.give_up();
  if (norm.meeting) norm.meeting->fail(why);
}

}  // namespace troupe::actors
