#include "actors/norm/stage_norm.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <caf/send.hpp>
#include <chrono>
#include <functional>
#include <numeric>
#include <span>

#include "engine/data/sampler.hpp"

namespace troupe::actors {
namespace {

/// The work thread is idle meanwhile: who is slow is another stage.
template <class Body>
engine::norm_part waiting(const exchange_terms& terms, double& waited_s, const Body& body) {
  const auto begin = engine::activity::clock::now();
  terms.doing->withdraw();
  auto sum = body();
  const auto end = engine::activity::clock::now();
  waited_s += std::chrono::duration<double>(end - begin).count();
  terms.doing->begin(terms.item, end);
  return sum;
}

}  // namespace

stage_norm::stage_norm(const replica_group& group, const std::string& stage, int lane_threads)
    : synced_(group.synced_norm),
      rank_(group.own),
      ranks_(std::max<std::uint32_t>(1, static_cast<std::uint32_t>(group.stages.size()))),
      logical_(group.logical) {
  if (!synced_) return;
  core = engine::norm_sum_core(rank_, ranks_);
  if (ranks_ > 1) meeting_ = std::make_shared<engine::norm_meeting>();
  lanes_ = std::make_shared<engine::norm_lanes>(stage + " norm", logical_, lane_threads);
}

result<std::optional<announced_groups>> stage_norm::groups_of(const run_stage& order) const {
  if (order.norm_shares.empty()) return std::nullopt;
  const auto refuse = [](const std::string& why) { return fail(errc::bad_config, why); };
  if (!synced_ || order.kind != engine::step_kind::training)
    return refuse("a run whose batch norms are synchronized, but the stage's are not");
  const auto first = std::size_t{rank_} * logical_;
  if (order.norm_shares.size() != std::size_t{logical_} * ranks_ ||
      !std::ranges::equal(order.shares, std::span(order.norm_shares).subspan(first, logical_)))
    return refuse("a run whose batch norms are synchronized over other replicas than the stage's");
  const auto count = std::reduce(order.norm_shares.begin(), order.norm_shares.end(),
                                 std::int64_t{0}, std::plus<>());
  auto samples = engine::microbatch_sizes(order.batch_size, count);
  if (!samples) return tl::unexpected(samples.error());
  return announced_groups{engine::norm_groups(order.norm_shares, rank_, ranks_),
                          std::move(*samples)};
}

group_action stage_norm::action_of(const announced_groups& groups, const engine::step_key& step,
                                   const engine::action& what, const exchange_terms& terms) const {
  const auto& [kind, group, chunk] = what;
  group_action made{.group = {groups.of.members(group.value), {}},
                    .lanes = lanes_,
                    .exchange = {},
                    .waited_s = std::make_shared<double>(0)};
  for (const auto& each : made.group.members)
    made.group.samples.push_back(groups.samples.at(each.of_batch));
  made.exchange = [meeting = meeting_, terms, waited_s = made.waited_s,
                   at = engine::norm_place{.step = step,
                                           .backward = kind != engine::action_kind::forward,
                                           .chunk = chunk,
                                           .group = group.value}](engine::norm_sum sum,
                                                                  engine::norm_part own) mutable {
    if (!meeting) return own;
    ++at.ordinal;
    return waiting(terms, *waited_s, [&] {
      return meeting->wait([&] {
        caf::anon_send(terms.with, norm_given{at, sum, std::move(own), terms.connection});
      });
    });
  };
  return made;
}

void stage_norm::give_up(const error& why) {
  core.give_up();
  if (meeting_) meeting_->fail(why);
}

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

}  // namespace troupe::actors
