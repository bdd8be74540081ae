#include "actors/step_end/step_coordinator.hpp"

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>
#include <map>
#include <string>
#include <vector>

#include "actors/arrivals/cheap_actors.hpp"
#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/base/same_actor.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/step_end.hpp"
#include "actors/recovery/departed_core.hpp"

namespace troupe::actors {
namespace {

struct step_coordinator_state {
  engine::step_coordinator_core core;
  std::map<engine::step_key, std::vector<caf::typed_response_promise<step_decision>>> waiting;
  // For the loss scale after a step, by its number.
  std::multimap<std::uint64_t, caf::typed_response_promise<loss_scale_now>> expecting;
  departed_core<caf::strong_actor_ptr, same_actor> departed;
};

using step_coordinator_pointer = step_coordinator_actor::stateful_pointer<step_coordinator_state>;

/// A step of this number is decided.
void tell_scale(step_coordinator_state& state, std::uint64_t number) {
  const auto scaler = state.core.scaler_after(number);
  const auto [first, last] = state.expecting.equal_range(number);
  for (auto each = first; scaler && each != last; ++each)
    each->second.deliver(loss_scale_now{scaler->scale, scaler->applied});
  if (scaler) state.expecting.erase(first, last);
}

caf::result<step_decision> on_vote(step_coordinator_pointer self, const step_vote& vote) {
  auto& state = self->state;
  if (state.departed.has_departed(self->current_sender()))
    return to_caf({errc::stale, "a vote of a stage whose place another one has taken"});
  const auto decision = state.core.hear(vote);
  if (!decision) return to_caf(decision.error());
  auto promise = self->make_response_promise<step_decision>();
  state.waiting[vote.step].push_back(promise);
  if (!*decision) return promise;
  auto all = state.waiting.extract(vote.step);
  for (auto& each : all.mapped()) each.deliver(step_decision(**decision));
  tell_scale(state, vote.number);
  return promise;
}

caf::result<loss_scale_now> on_read_scale(step_coordinator_pointer self,
                                          const read_loss_scale& what) {
  const auto& core = self->state.core;
  const auto scaler = what.after > 0 ? core.scaler_after(what.after) : core.scaler();
  if (scaler) return loss_scale_now{scaler->scale, scaler->applied};
  if (what.after == 0) return loss_scale_now{};
  if (what.when_decided) {
    auto promise = self->make_response_promise<loss_scale_now>();
    self->state.expecting.emplace(what.after, promise);
    return promise;
  }
  return to_caf({errc::stale,
                 "step " + std::to_string(what.after) + " left no loss scale that is still known"});
}

step_coordinator_actor::behavior_type step_coordinator_behavior(
    step_coordinator_pointer self, const engine::step_coordinator_rules& rules) {
  self->state.core = engine::step_coordinator_core(rules);
  end_when_thrown(*self, "the coordinator of the steps");
  return {
      [self](const step_vote& vote) { return on_vote(self, vote); },
      [self](const replace_voter& what) {
        self->state.departed.replaced(what.lost);
        self->state.core.vote_again(what.place);
        return acknowledged{};
      },
      [self](const read_loss_scale& what) { return on_read_scale(self, what); },
  };
}

}  // namespace

step_coordinator_actor spawn_step_coordinator(caf::actor_system& system,
                                              const engine::step_coordinator_rules& rules) {
  auto made = system.spawn(step_coordinator_behavior, rules);
  declare_cheap(caf::actor_cast<caf::strong_actor_ptr>(made));  // it adds up numbers, no tensors
  return made;
}

}  // namespace troupe::actors
