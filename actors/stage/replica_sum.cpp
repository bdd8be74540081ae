#include "actors/stage/replica_sum.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace troupe::actors {
namespace {

engine::all_reduce_core core_of(const replica_group& group) {
  return engine::all_reduce_core(
      group.own, static_cast<std::uint32_t>(std::max<std::size_t>(1, group.stages.size())));
}

engine::step_gradients received(const std::vector<at::Tensor>& tensors) {
  engine::step_gradients all;
  all.reserve(tensors.size());
  for (const auto& each : tensors)
    all.push_back(each.defined() ? std::optional(each) : std::nullopt);
  return all;
}

}  // namespace

replica_sum::replica_sum(const replica_group& group, std::vector<engine::named_tensor> parameters,
                         std::size_t chunks)
    : core(core_of(group)),
      logical_(group.logical),
      parameters_(std::move(parameters)),
      chunks_(chunks) {
  for (const auto& each : group.stages) stages_.push_back(caf::actor_cast<stage_actor>(each));
  std::vector<std::uint64_t> bytes;
  bytes.reserve(parameters_.size());
  for (const auto& each : parameters_) bytes.push_back(each.tensor.nbytes());
  shares_ = engine::share_out(bytes, core.ranks());
}

engine::step_gradients replica_sum::part_of(const engine::step_gradients& all,
                                            std::uint32_t rank) const {
  const auto& [first, last] = shares_.at(rank);
  return {all.begin() + static_cast<std::ptrdiff_t>(first),
          all.begin() + static_cast<std::ptrdiff_t>(last)};
}

result<void> replica_sum::check(const replica_gradients& from) const {
  const auto refuse = [&](const std::string& why) {
    return fail(errc::bad_frame, "what replica " + std::to_string(from.from) + " sent for " +
                                     engine::to_string(from.step) + " " + why);
  };
  if (from.from >= shares_.size() || from.from == core.rank())
    return refuse("is of none of the other replicas");
  const auto& share = shares_[from.summed ? from.from : core.rank()];
  if (from.gradients.size() != share.size())
    return refuse("has " + std::to_string(from.gradients.size()) + " gradients, not " +
                  std::to_string(share.size()));
  for (std::size_t i = 0; i < share.size(); ++i) {
    const auto& [name, parameter] = parameters_[share.first + i];
    const auto& each = from.gradients[i];
    if (each.defined() &&
        (each.sizes() != parameter.sizes() || each.scalar_type() != parameter.scalar_type()))
      return refuse("has a gradient of " + name + " of another shape or type than it");
  }
  if (!from.summed && from.statistics.size() != chunks_)
    return refuse("has statistics of another number of chunks");
  return {};
}

void replica_sum::keep_own(const engine::step_key& step, const engine::step_gradients& parts,
                           std::vector<engine::step_statistics> statistics) {
  steps_[step].parts[core.rank()] = part_of(parts, core.rank());
  steps_[step].statistics[core.rank()] = std::move(statistics);
}

void replica_sum::keep(const replica_gradients& from) {
  auto& step = steps_[from.step];
  (from.summed ? step.sums : step.parts)[from.from] = received(from.gradients);
  if (!from.summed) step.statistics[from.from] = from.statistics;
}

void replica_sum::keep_own_sum(const engine::step_key& step, engine::step_gradients sum) {
  steps_[step].sums[core.rank()] = std::move(sum);
}

std::vector<engine::step_gradients> replica_sum::take_parts(const engine::step_key& step) {
  std::vector<engine::step_gradients> all;
  for (auto& [rank, parts] : std::exchange(steps_[step].parts, {}))
    all.push_back(std::move(parts));
  return all;
}

const engine::step_gradients& replica_sum::own_sum(const engine::step_key& step) const {
  return steps_.at(step).sums.at(core.rank());
}

replica_sum::outcome replica_sum::take(const engine::step_key& step) {
  auto taken = steps_.extract(step);
  outcome all{.gradients = {}, .statistics = {}};
  all.statistics.resize(chunks_);
  if (!taken) return all;
  for (auto& [rank, sums] : taken.mapped().sums)
    std::ranges::move(sums, std::back_inserter(all.gradients));
  for (auto& [rank, statistics] : taken.mapped().statistics)
    for (std::size_t chunk = 0; chunk < statistics.size() && chunk < chunks_; ++chunk)
      all.statistics[chunk].push_back(std::move(statistics[chunk]));
  return all;
}

void replica_sum::give_up() {
  core.give_up();
  steps_.clear();
}

}  // namespace troupe::actors
