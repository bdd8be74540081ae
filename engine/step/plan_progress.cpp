#include "engine/step/plan_progress.hpp"

#include <algorithm>
#include <utility>

namespace troupe::engine {

plan_progress::plan_progress(shared_plan steps)
    : steps_(std::move(steps)), started_(steps_->actions().size()) {
  chunks_.reserve(steps_->chunks());
  for (std::uint32_t chunk = 0; chunk < steps_->chunks(); ++chunk) {
    const auto& [forwards, gradients, weights] = steps_->places_of(chunk);
    chunks_.push_back({{&forwards}, {&gradients}, {&weights}});
  }
}

plan_progress::lane& plan_progress::lane_of(const action& what) {
  auto& [forwards, gradients, weights, complete] = chunks_[what.chunk];
  if (what.kind == action_kind::forward) return forwards;
  return what.kind == action_kind::weight_gradient ? weights : gradients;
}

std::optional<action> plan_progress::best(const std::function<bool(const action&)>& can_start,
                                          execution how) const {
  std::optional<std::size_t> found;
  const auto consider = [&](const lane& of) {
    if (of.empty() || (how == execution::planned && of.front() != next_)) return;
    if (found && *found < of.front()) return;
    const action& what = steps_->actions()[of.front()];
    if (in_turn(what, of.front()) && can_start(what) && has_room(of.front())) found = of.front();
  };
  for (const auto& chunk : chunks_) {
    consider(chunk.gradients);
    consider(chunk.forwards);
    consider(chunk.weights);
  }
  if (!found) return std::nullopt;
  return steps_->actions()[*found];
}

bool plan_progress::in_turn(const action& what, std::size_t place) const {
  const auto& [forwards, gradients, weights, complete] = chunks_[what.chunk];
  const std::uint32_t index = what.microbatch.value;
  const auto passes_by_forward = [place](const chunk_lanes& chunk) {
    return !chunk.forwards.empty() && chunk.forwards.front() < place;
  };
  switch (what.kind) {
    case action_kind::forward:
      return true;
    case action_kind::input_gradient:
      return forwards.started > index;
    case action_kind::backward:
      return forwards.started > index && complete == index &&
             std::ranges::none_of(chunks_, passes_by_forward);
    case action_kind::weight_gradient:
      return place == next_;
  }
  return false;
}

bool plan_progress::has_room(std::size_t place) const {
  return steps_->actions()[place].kind != action_kind::forward || place == next_ ||
         steps_->kind() == step_kind::evaluation || early_ < steps_->spare();
}

void plan_progress::start(const action& what) {
  lane& own = lane_of(what);
  started_[own.front()] = true;
  ++own.started;
  if (what.kind == action_kind::forward) ++early_;
  if (what.kind == action_kind::backward || what.kind == action_kind::weight_gradient)
    ++chunks_[what.chunk].complete;
  for (; !complete() && started_[next_]; ++next_)
    if (next().kind == action_kind::forward) --early_;
}

}  // namespace troupe::engine
