#include "actors/pipeline/judge.hpp"

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>
#include <map>
#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

/// A step that not all stages have asked about.
struct open_case {
  std::map<std::uint32_t, std::string> bad;  // by place
  std::vector<caf::typed_response_promise<verdict>> waiting;
};

struct judge_state {
  std::size_t stages = 0;
  std::map<engine::step_key, open_case> cases;
};

using self_pointer = judge_actor::stateful_pointer<judge_state>;

caf::result<verdict> on_ask(self_pointer self, const ask_verdict& asked) {
  auto& of = self->state.cases[asked.step];
  if (!asked.bad.empty()) of.bad[asked.place] = asked.bad;
  auto promise = self->make_response_promise<verdict>();
  of.waiting.push_back(promise);
  if (of.waiting.size() == self->state.stages) {
    auto closed = self->state.cases.extract(asked.step);
    const auto& [bad, waiting] = closed.mapped();
    const verdict decided{bad.empty() ? "" : bad.begin()->second};
    for (auto each : waiting) each.deliver(decided);
  }
  return promise;
}

judge_actor::behavior_type judge_behavior(self_pointer self, std::size_t stages) {
  self->state.stages = stages;
  return {[self](const ask_verdict& asked) { return on_ask(self, asked); }};
}

}  // namespace

judge_actor spawn_judge(caf::actor_system& system, std::size_t stages) {
  return system.spawn(judge_behavior, stages);
}

}  // namespace troupe::actors
