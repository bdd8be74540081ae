#include "engine/step/proved_plan.hpp"

#include <algorithm>
#include <utility>

#include "engine/schedule/plan_checker.hpp"

namespace troupe::engine {
namespace {

/// What an action adds to the activations held, in a training step.
int held_by(action_kind kind) {
  if (kind == action_kind::forward) return 1;
  return kind == action_kind::input_gradient ? 0 : -1;
}

std::vector<std::size_t>& places_of(action_kind kind, proved_plan::chunk_places& chunk) {
  if (kind == action_kind::forward) return chunk.forwards;
  return kind == action_kind::weight_gradient ? chunk.weights : chunk.gradients;
}

}  // namespace

result<shared_plan> proved_plan::prove(stage_plan steps, std::uint32_t microbatches,
                                       std::uint32_t chunks, step_kind kind) {
  if (auto sound = check_stage(steps, {}, microbatches, chunks, kind); !sound)
    return tl::unexpected(sound.error());
  return shared_plan(new proved_plan(std::move(steps), microbatches, chunks, kind));
}

shared_plan proved_plan::empty(std::uint32_t chunks, step_kind kind) {
  return shared_plan(new proved_plan({}, 0, chunks, kind));
}

proved_plan::proved_plan(stage_plan steps, std::uint32_t microbatches, std::uint32_t chunks,
                         step_kind kind)
    : steps_(std::move(steps)), microbatches_(microbatches), kind_(kind), places_(chunks) {
  int held = 0;
  int most = 0;
  for (std::size_t place = 0; place < steps_.actions.size(); ++place) {
    const action& what = steps_.actions[place];
    engine::places_of(what.kind, places_[what.chunk]).push_back(place);
    most = std::max(most, held += held_by(what.kind));
  }
  if (kind_ == step_kind::training) spare_ = steps_.memory_cap - static_cast<std::uint32_t>(most);
}

}  // namespace troupe::engine
