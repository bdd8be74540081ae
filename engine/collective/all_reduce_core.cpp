#include "engine/collective/all_reduce_core.hpp"

#include <string>

namespace troupe::engine {

result<all_reduce_effects> all_reduce_core::begin(const step_key& key) {
  if (last_ && key <= *last_)
    return fail(errc::stale, "a reduction of " + to_string(key) + ", which is over");
  auto& step = open_[key];
  if (step.at != phase::heard_of)
    return fail(errc::bad_frame, "a reduction of " + to_string(key) + " begins twice");
  step.at = phase::gathering;
  all_reduce_effects effects;
  if (ranks_ > 1) effects.emplace_back(send_parts{key});
  advance(key, step, effects);
  return effects;
}

result<all_reduce_core::open_step*> all_reduce_core::hear(const step_key& key, std::uint32_t from,
                                                          const char* what) {
  const auto text = std::string(what) + " of replica " + std::to_string(from) + " for " +
                    to_string(key);
  if (from >= ranks_ || from == rank_)
    return fail(errc::bad_frame, text + ": that is none of the other " +
                                     std::to_string(ranks_ - 1) + " replicas");
  if (last_ && key <= *last_) return fail(errc::stale, text + ", which is over");
  if (!open_.contains(key) && open_.size() >= max_open)
    return fail(errc::bad_frame, text + ": too many steps wait for other replicas");
  return &open_[key];
}

result<all_reduce_effects> all_reduce_core::parts_arrived(const step_key& key,
                                                          std::uint32_t from) {
  const auto step = hear(key, from, "the parts");
  if (!step) return tl::unexpected(step.error());
  if (!(*step)->parts.insert(from).second)
    return fail(errc::bad_frame, "the parts of replica " + std::to_string(from) + " for " +
                                     to_string(key) + " came twice");
  all_reduce_effects effects;
  advance(key, **step, effects);
  return effects;
}

result<all_reduce_effects> all_reduce_core::own_added(const step_key& key) {
  const auto found = open_.find(key);
  if (found == open_.end() || found->second.at != phase::adding)
    return fail(errc::bad_frame, "the sum of the own share of " + to_string(key) + " is not due");
  found->second.at = phase::added;
  all_reduce_effects effects;
  if (ranks_ > 1) effects.emplace_back(send_sum{key});
  advance(key, found->second, effects);
  return effects;
}

result<all_reduce_effects> all_reduce_core::sum_arrived(const step_key& key, std::uint32_t from) {
  const auto step = hear(key, from, "the sum");
  if (!step) return tl::unexpected(step.error());
  if (!(*step)->sums.insert(from).second)
    return fail(errc::bad_frame, "the sum of replica " + std::to_string(from) + " for " +
                                     to_string(key) + " came twice");
  all_reduce_effects effects;
  advance(key, **step, effects);
  return effects;
}

void all_reduce_core::advance(const step_key& key, open_step& step, all_reduce_effects& effects) {
  const auto others = ranks_ - 1;
  if (step.at == phase::gathering && step.parts.size() == others) {
    step.at = phase::adding;
    effects.emplace_back(add_parts{key});
  }
  if (step.at != phase::added || step.sums.size() < others) return;
  effects.emplace_back(all_reduced{key});
  last_ = key;
  open_.erase(key);
}

}  // namespace troupe::engine
