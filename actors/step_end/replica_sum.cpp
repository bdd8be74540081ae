#include "actors/step_end/replica_sum.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {
namespace {

engine::all_reduce_core core_of(const replica_group& group,
                                const std::vector<engine::named_tensor>& parameters,
                                std::size_t steps_again) {
  const auto ranks = static_cast<std::uint32_t>(group.stages.size());
  if (ranks < 2) return engine::all_reduce_core(group.own, 1, {});
  std::vector<std::uint64_t> bytes;
  bytes.reserve(parameters.size());
  for (const auto& each : parameters) bytes.push_back(each.tensor.nbytes());
  const bool by_port = group.sums != engine::replica_sum_way::links;
  return {group.own,
          ranks,
          engine::make_buckets(bytes, engine::owners_of(bytes, ranks)),
          engine::all_reduce_core::usual_in_flight_bytes,
          by_port ? engine::bucket_way::whole : engine::bucket_way::parts,
          steps_again};
}

engine::all_gather_core gather_of(const engine::all_reduce_core& core) {
  std::vector<std::uint32_t> owners;
  for (const auto& each : core.buckets()) owners.push_back(each.owner);
  return engine::all_gather_core(core.rank(), core.ranks(), std::move(owners));
}

engine::step_gradients received(const std::vector<at::Tensor>& tensors) {
  engine::step_gradients all;
  all.reserve(tensors.size());
  for (const auto& each : tensors)
    all.push_back(each.defined() ? std::optional(each) : std::nullopt);
  return all;
}

bool is_like(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && one.scalar_type() == other.scalar_type();
}

tl::unexpected<error> misfit(std::uint32_t rank, const engine::step_key& step,
                             const std::string& why) {
  return fail(errc::bad_frame, "what replica " + std::to_string(rank) + " sent for " +
                                   engine::to_string(step) + " " + why);
}

}  // namespace

replica_sum::replica_sum(const replica_group& group, std::vector<engine::named_tensor> parameters,
                         std::size_t chunks, std::size_t steps_again)
    : core(core_of(group, parameters, steps_again)),
      gather(gather_of(core)),
      logical_(group.logical),
      by_port_(group.sums != engine::replica_sum_way::links && core.ranks() > 1),
      parameters_(std::move(parameters)),
      chunks_(chunks),
      shares_state_(group.shares_state && core.ranks() > 1),
      is_known_(parameters_.size()),
      bucket_of_(core.buckets().empty() ? 0 : parameters_.size()) {
  for (const auto& each : group.stages) stages_.push_back(caf::actor_cast<stage_actor>(each));
  for (std::size_t bucket = 0; bucket < core.buckets().size(); ++bucket)
    for (const auto i : core.buckets()[bucket].parameters) bucket_of_[i] = bucket;
}

void replica_sum::know_everywhere(const std::string& parameter) {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].name == parameter) is_known_[i] = true;
}

bool replica_sum::is_known_everywhere(std::size_t bucket) const {
  const auto& which = core.buckets()[bucket].parameters;
  return !shares_state_ || std::ranges::any_of(which, [this](auto i) { return is_known_[i]; });
}

replica_sum::open_step& replica_sum::open(const engine::step_key& step) {
  const auto [found, fresh] = steps_.try_emplace(step);
  auto& opened = found->second;
  if (!fresh) return opened;
  opened.gradients.resize(parameters_.size());
  opened.is_kept.resize(parameters_.size());
  for (const auto& bucket : core.buckets()) opened.missing.push_back(bucket.parameters.size());
  return opened;
}

result<const std::vector<std::size_t>*> replica_sum::parameters_of(std::uint32_t bucket,
                                                                   std::uint32_t from,
                                                                   const engine::step_key& step,
                                                                   std::size_t count) const {
  const auto& buckets = core.buckets();
  if (bucket >= buckets.size())
    return misfit(from, step,
                  "is bucket " + std::to_string(bucket) + " of " + std::to_string(buckets.size()));
  const auto& which = buckets[bucket].parameters;
  if (count != which.size())
    return misfit(from, step,
                  "has " + std::to_string(count) + " tensors, not " + std::to_string(which.size()));
  return &which;
}

result<void> replica_sum::check(const replica_gradients& from) const {
  const auto which = parameters_of(from.bucket, from.from, from.step, from.gradients.size());
  if (!which) return tl::unexpected(which.error());
  for (std::size_t i = 0; i < from.gradients.size(); ++i) {
    const auto& [name, parameter] = parameters_[(**which)[i]];
    const auto& each = from.gradients[i];
    if (each.defined() && !is_like(each, parameter))
      return misfit(from.from, from.step,
                    "has a gradient of " + name + " of another shape or type than it");
  }
  return {};
}

result<void> replica_sum::check(const replica_statistics& from) const {
  if (from.statistics.size() != chunks_)
    return misfit(from.from, from.step, "has statistics of another number of chunks");
  if (std::ranges::any_of(from.without, [this](auto i) { return i >= parameters_.size(); }))
    return misfit(from.from, from.step, "names a parameter that there is not");
  return {};
}

result<void> replica_sum::check(const replica_parameters& from) const {
  if (!shares_state_) return misfit(from.from, from.step, "is of an update that is not shared out");
  const auto which = parameters_of(from.bucket, from.from, from.step, from.values.size());
  if (!which) return tl::unexpected(which.error());
  for (std::size_t i = 0; i < from.values.size(); ++i) {
    const auto& [name, parameter] = parameters_[(**which)[i]];
    const auto& each = from.values[i];
    if (!each.defined() || !is_like(each, parameter))
      return misfit(from.from, from.step, "has no value of " + name + " of its shape and type");
  }
  return {};
}

std::optional<std::size_t> replica_sum::keep_own(const engine::step_key& step,
                                                 std::size_t parameter,
                                                 std::optional<at::Tensor> gradient) {
  auto& opened = open(step);
  if (!gradient) opened.without.push_back(static_cast<std::uint32_t>(parameter));
  opened.gradients.at(parameter) = std::move(gradient);
  opened.is_kept[parameter] = true;
  if (bucket_of_.empty()) return std::nullopt;
  const auto bucket = bucket_of_[parameter];
  if (--opened.missing[bucket] > 0) return std::nullopt;
  return bucket;
}

void replica_sum::keep_rest(const engine::step_key& step, const engine::step_gradients& rest,
                            std::vector<engine::step_statistics> statistics) {
  auto& opened = open(step);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (opened.is_kept[i]) continue;
    if (!rest[i]) opened.without.push_back(static_cast<std::uint32_t>(i));
    opened.gradients[i] = rest[i];
  }
  for (const auto i : opened.without) ++opened.lacking[i];
  opened.statistics[core.rank()] = std::move(statistics);
}

void replica_sum::keep(const replica_gradients& from) {
  auto& opened = open(from.step);
  auto taken = received(from.gradients);
  if (from.summed)
    put_sums(opened, from.bucket, std::move(taken));
  else
    opened.parts[from.bucket][from.from] = std::move(taken);
}

void replica_sum::keep(const replica_statistics& from) {
  auto& opened = open(from.step);
  opened.statistics[from.from] = from.statistics;
  for (const auto i : from.without) ++opened.lacking[i];
}

void replica_sum::keep_own_sum(const engine::step_key& step, std::size_t bucket,
                               engine::step_gradients sum) {
  put_sums(open(step), bucket, std::move(sum));
}

void replica_sum::put_sums(open_step& step, std::size_t bucket, engine::step_gradients sums) const {
  const auto& which = core.buckets()[bucket].parameters;
  for (std::size_t i = 0; i < which.size(); ++i) step.gradients[which[i]] = std::move(sums[i]);
}

engine::step_gradients replica_sum::take_own(const engine::step_key& step, std::size_t bucket) {
  auto& opened = steps_.at(step);
  engine::step_gradients own;
  for (const auto i : core.buckets()[bucket].parameters)
    own.push_back(std::exchange(opened.gradients[i], std::nullopt));
  return own;
}

std::vector<engine::step_gradients> replica_sum::take_parts(const engine::step_key& step,
                                                            std::size_t bucket) {
  auto& opened = steps_.at(step);
  opened.parts[bucket][core.rank()] = take_own(step, bucket);
  std::vector<engine::step_gradients> all;
  auto taken = opened.parts.extract(bucket);
  for (auto& [rank, parts] : taken.mapped()) all.push_back(std::move(parts));
  return all;
}

engine::step_gradients replica_sum::sums_of(const engine::step_key& step, std::size_t bucket,
                                            bool all) const {
  engine::step_gradients sums;
  for (const auto i : core.buckets()[bucket].parameters)
    sums.push_back(all || !shares_state_ || is_known_[i] ? steps_.at(step).gradients[i]
                                                         : std::nullopt);
  return sums;
}

const std::vector<std::uint32_t>& replica_sum::without(const engine::step_key& step) const {
  static const std::vector<std::uint32_t> none;  // messages over links say it themselves
  return by_port_ ? steps_.at(step).without : none;
}

std::vector<at::Tensor> replica_sum::values_of(std::size_t bucket) const {
  std::vector<at::Tensor> values;
  for (const auto i : core.buckets()[bucket].parameters)
    values.push_back(parameters_[i].tensor.detach());
  return values;
}

void replica_sum::keep(const replica_parameters& from) {
  auto& values = values_[from.step];
  values.resize(parameters_.size());
  const auto& which = core.buckets()[from.bucket].parameters;
  for (std::size_t i = 0; i < which.size(); ++i) values[which[i]] = from.values[i];
}

engine::step_gradients replica_sum::take_values(const engine::step_key& step) {
  auto taken = values_.extract(step);
  return taken ? std::move(taken.mapped()) : engine::step_gradients(parameters_.size());
}

replica_sum::outcome replica_sum::take(const engine::step_key& step) {
  auto taken = steps_.extract(step);
  outcome all{.gradients = {}, .statistics = {}};
  all.statistics.resize(chunks_);
  if (!taken) return all;
  all.gradients = std::move(taken.mapped().gradients);
  // A collective gives zeros where no rank has a gradient; an update is to see none.
  if (by_port_)
    for (const auto& [parameter, ranks] : taken.mapped().lacking)
      if (ranks == core.ranks()) all.gradients[parameter].reset();
  for (auto& [rank, statistics] : taken.mapped().statistics)
    for (std::size_t chunk = 0; chunk < statistics.size() && chunk < chunks_; ++chunk)
      all.statistics[chunk].push_back(std::move(statistics[chunk]));
  return all;
}

void replica_sum::give_up() {
  core.give_up();
  gather.give_up();
  steps_.clear();
  values_.clear();
}

}  // namespace troupe::actors
