#include "actors/pipeline/judge.hpp"

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>
#include <map>
#include <utility>
#include <vector>

#include "actors/errors.hpp"
#include "actors/failure.hpp"
#include "actors/messages/judge.hpp"

namespace troupe::actors {
namespace {

struct judge_state {
  judge_core core;
  std::map<engine::step_key, std::vector<caf::typed_response_promise<verdict>>> waiting;
};

using self_pointer = judge_actor::stateful_pointer<judge_state>;

caf::result<verdict> on_ask(self_pointer self, const ask_verdict& asked) {
  auto& state = self->state;
  const auto decided = state.core.hear(asked);
  if (!decided) return to_caf(decided.error());
  auto promise = self->make_response_promise<verdict>();
  state.waiting[asked.step].push_back(promise);
  if (!*decided) return promise;
  auto all = state.waiting.extract(asked.step);
  for (auto& each : all.mapped()) each.deliver(**decided);
  return promise;
}

judge_actor::behavior_type judge_behavior(self_pointer self, judge_rules rules) {
  self->state.core = judge_core(std::move(rules));
  end_when_thrown(*self, "the judge of the steps");
  return {
      [self](const ask_verdict& asked) { return on_ask(self, asked); },
      [self](const read_loss_scale&) { return self->state.core.scale(); },
  };
}

}  // namespace

judge_actor spawn_judge(caf::actor_system& system, judge_rules rules) {
  return system.spawn(judge_behavior, std::move(rules));
}

}  // namespace troupe::actors
