#include "actors/stage/stage_state.hpp"

#include <utility>

#include "actors/errors.hpp"
#include "messages/log.hpp"

namespace troupe::actors {

module_list modules_of(const stage_state& state) {
  module_list all;
  for (const auto& module : state.modules) all.push_back(module.get());
  return all;
}

void fail_all(stage_pointer self, const error& why) {
  auto steps = std::exchange(self->state.steps, {});
  self->state.inbox.clear();
  self->state.outputs.clear();
  if (steps.empty()) log::error(self->state.name + ": " + why.text);
  for (auto& [key, step] : steps)
    step.answer.deliver(to_caf({why.code, self->state.name + ": " + why.text}));
}

}  // namespace troupe::actors
