#include "engine/parameter_server/shard_core.hpp"

#include <string>
#include <utility>

namespace troupe::engine {
namespace {

std::string text_of(const push_id& push) {
  return "push " + std::to_string(push.sequence) + " of worker " +
         std::to_string(push.worker.value);
}

}  // namespace

shard_effects shard_core::expel(worker_id worker) {
  const auto gone = members_.extract(worker);
  shard_effects effects;
  if (!gone || gone.mapped().state != part::staged) return effects;
  const push_id open{worker, gone.mapped().last};
  effects.emplace_back(forget_part{open});
  effects.emplace_back(
      settle_push{open, fail(errc::cancelled, text_of(open) + ": the worker has left")});
  return effects;
}

result<shard_effects> shard_core::push(const based_push& what, const std::optional<error>& fault) {
  if (failure_) return tl::unexpected(*failure_);
  const auto found = members_.find(what.push.worker);
  if (found == members_.end())
    return fail(errc::not_admitted, text_of(what.push) + ": that worker is no member");
  auto& [last, state, outcome] = found->second;
  const auto sequence = what.push.sequence;
  if (sequence < last || sequence == 0)
    return fail(errc::stale, text_of(what.push) + " came after push " + std::to_string(last));
  if (sequence == last) {
    shard_effects again;
    if (state == part::none) again.emplace_back(settle_push{what.push, outcome});
    return again;
  }
  if (sequence > last + 1 || state != part::none)
    return fail(errc::bad_frame, text_of(what.push) + " came before the fate of push " +
                                     std::to_string(last) + " was known");
  last = sequence;
  state = part::staged;
  return shard_effects{report_staged{what, fault}};
}

result<shard_effects> shard_core::apply(const server_update& update) {
  if (failure_) return shard_effects{};
  if (update.version.value != decided_.value + 1 || update.pushes.empty())
    return fail(errc::bad_frame, "update " + std::to_string(update.version.value) +
                                     " was ordered after update " + std::to_string(decided_.value));
  const auto bound = rules_.mode == server_mode::synchronous ? 0 : rules_.staleness;
  for (const auto& [push, base] : update.pushes) {
    const auto found = members_.find(push.worker);
    if (found == members_.end() || found->second.state != part::staged ||
        found->second.last != push.sequence)
      return fail(errc::bad_frame, text_of(push) + " was ordered, but is not here");
    if (base > decided_ || decided_.value - base.value > bound)
      return fail(errc::bad_frame, text_of(push) + " was ordered although it is too stale");
  }
  for (const auto& each : update.pushes) members_.at(each.push.worker).state = part::applying;
  decided_ = update.version;
  under_way_.push_back(update);
  return shard_effects{start_update{update}};
}

shard_effects shard_core::refuse(const push_id& push, const error& why) {
  const auto found = members_.find(push.worker);
  if (found == members_.end() || found->second.last != push.sequence ||
      found->second.state != part::staged)
    return {};
  shard_effects effects{forget_part{push}};
  settle(push, tl::unexpected(why), effects);
  return effects;
}

shard_effects shard_core::updated(const result<void>& outcome) {
  if (under_way_.empty()) return {};  // it failed before
  if (!outcome) return fail_all(outcome.error());
  const auto done = std::exchange(under_way_.front(), {});
  under_way_.pop_front();
  version_ = done.version;
  shard_effects effects;
  for (const auto& each : done.pushes) settle(each.push, done.version, effects);
  return effects;
}

shard_effects shard_core::fail_all(const error& why) {
  failure_ = why;
  under_way_.clear();
  shard_effects effects;
  for (auto& [worker, each] : members_) {
    if (each.state == part::none) continue;
    const push_id open{worker, each.last};
    if (each.state == part::staged) effects.emplace_back(forget_part{open});
    settle(open, tl::unexpected(why), effects);
  }
  return effects;
}

bool shard_core::keeps(const push_id& push) const {
  const auto found = members_.find(push.worker);
  return found != members_.end() && found->second.last == push.sequence &&
         found->second.state == part::staged;
}

void shard_core::settle(const push_id& push, const result<param_version>& outcome,
                        shard_effects& effects) {
  if (const auto found = members_.find(push.worker); found != members_.end()) {
    found->second.state = part::none;
    found->second.outcome = outcome;
  }
  effects.emplace_back(settle_push{push, outcome});
}

}  // namespace troupe::engine
