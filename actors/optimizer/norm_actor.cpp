#include "actors/optimizer/norm_actor.hpp"

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>
#include <map>
#include <vector>

#include "actors/errors.hpp"
#include "actors/failure.hpp"
#include "actors/messages/optimizer.hpp"
#include "actors/optimizer/norm_core.hpp"

namespace troupe::actors {
namespace {

struct norm_state {
  norm_core core;
  std::map<std::uint64_t, std::vector<caf::typed_response_promise<norm_total>>> waiting;
};

using self_pointer = norm_actor::stateful_pointer<norm_state>;

caf::result<norm_total> on_part(self_pointer self, const norm_part& part) {
  auto& state = self->state;
  const auto sum = state.core.add(part.update, part.stage.value, part.squares);
  if (!sum) return to_caf(sum.error());
  auto promise = self->make_response_promise<norm_total>();
  state.waiting[part.update].push_back(promise);
  if (!*sum) return promise;
  auto ready = state.waiting.extract(part.update);
  for (auto& each : ready.mapped()) each.deliver(norm_total{part.update, **sum});
  return promise;
}

norm_actor::behavior_type norm_behavior(self_pointer self, std::uint32_t stages) {
  self->state.core = norm_core(stages);
  end_when_thrown(*self, "the norm of the gradients");
  return {[self](const norm_part& part) { return on_part(self, part); }};
}

}  // namespace

norm_actor spawn_norm(caf::actor_system& system, std::uint32_t stages) {
  return system.spawn(norm_behavior, stages);
}

}  // namespace troupe::actors
