#include "engine/parameter_server/coordinator_core.hpp"

#include <algorithm>
#include <string>

namespace troupe::engine {

result<worker_id> coordinator_core::join(std::uint32_t rank, coordinator_effects& effects) {
  for (const auto& [id, each] : members_)
    if (each.rank == rank)
      return fail(errc::bad_config,
                  "a worker of rank " + std::to_string(rank) + " is here already");
  if (members_.size() >= max_members)
    return fail(errc::bad_config, "the parameter server has " + std::to_string(max_members) +
                                      " workers, and takes no more");
  const worker_id worker{++last_worker_};
  members_.emplace(worker, member{.rank = rank, .not_admitted_by = rules_.shards});
  if (ranks_.size() < rules_.expected_workers) ranks_.insert(rank);
  effects.emplace_back(admit_member{worker});
  return worker;
}

coordinator_effects coordinator_core::admitted(worker_id worker) {
  const auto found = members_.find(worker);
  if (found == members_.end() || found->second.not_admitted_by == 0 ||
      --found->second.not_admitted_by > 0)
    return {};
  return {welcome_member{worker}};
}

coordinator_effects coordinator_core::leave(worker_id worker) {
  const auto gone = members_.extract(worker);
  if (!gone) return {};
  if (gone.mapped().push) ++totals_.discarded;
  coordinator_effects effects{expel_member{worker}};
  std::ranges::move(close_round(), std::back_inserter(effects));
  return effects;
}

coordinator_effects coordinator_core::staged(std::uint32_t shard, const based_push& what,
                                             const std::optional<error>& fault) {
  const auto found = members_.find(what.push.worker);
  if (found == members_.end() || shard >= rules_.shards) return {};
  auto& of = found->second;
  if (what.push.sequence <= of.decided) return {};
  if (!of.push) of.push = open_push{what, std::vector<bool>(rules_.shards), rules_.shards, {}};
  auto& push = *of.push;
  if (push.staged[shard]) return {};
  push.staged[shard] = true;
  if (fault && !push.fault) push.fault = fault;
  if (push.what != what && !push.fault)
    push.fault = error{errc::bad_frame, "the parts of a push differ in number or version"};
  if (--push.missing > 0) return {};
  return decide(of);
}

std::optional<error> coordinator_core::reason_to_refuse(const open_push& push) const {
  if (push.fault) return push.fault;
  const auto base = push.what.base.value;
  const auto now = version_.value;
  const auto whose = "gradients of version " + std::to_string(base);
  if (base > now) return error{errc::bad_frame, whose + ": the newest is " + std::to_string(now)};
  const auto bound = rules_.mode == server_mode::synchronous ? 0 : rules_.staleness;
  if (now - base <= bound) return std::nullopt;
  return error{errc::stale, whose + " are " + std::to_string(now - base) + " updates old, " +
                                std::to_string(bound) +
                                " are allowed; pull and compute them again"};
}

coordinator_effects coordinator_core::decide(member& of) {
  if (const auto why = reason_to_refuse(*of.push)) {
    const auto refused = of.push->what.push;
    of.decided = refused.sequence;
    of.push.reset();
    ++totals_.refused;
    return {refuse_part{refused, *why}};
  }
  if (rules_.mode == server_mode::asynchronous) return {next_update({&of})};
  return close_round();
}

coordinator_effects coordinator_core::close_round() {
  if (rules_.mode == server_mode::asynchronous || members_.empty()) return {};
  if (ranks_.size() < rules_.expected_workers) return {};
  std::vector<member*> all;
  for (auto& [id, each] : members_) {
    if (!each.push || each.push->missing > 0) return {};
    all.push_back(&each);
  }
  std::ranges::sort(all, {}, &member::rank);
  return {next_update(all)};
}

server_update coordinator_core::next_update(const std::vector<member*>& of) {
  server_update update{{++version_.value}, {}};
  for (auto* each : of) {
    update.pushes.push_back(each->push->what);
    each->decided = each->push->what.push.sequence;
    each->push.reset();
    ++totals_.applied;
  }
  return update;
}

}  // namespace troupe::engine
