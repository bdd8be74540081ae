#include "tests/sim/runs/any_plan.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "engine/schedule/generators.hpp"

namespace troupe::tests {

using namespace engine;

namespace {

/// Plays a plan while writing it: what can run now may come next.
class plan_writer {
 public:
  plan_writer(const model_layout& layout, std::uint32_t microbatches, std::mt19937_64& random)
      : layout_(layout),
        random_(random),
        made_{"random", microbatches, std::vector<stage_plan>(layout.stages), layout.chunks,
              layout.order},
        slices_(layout.virtual_stages()),
        held_(layout.stages),
        eagerness_(layout.stages) {
    // How eager a stage is to go backward; some never are while they can go forward.
    for (auto& each : eagerness_) each = random() % 5;
  }

  plan write() {
    const std::size_t all = std::size_t{layout_.virtual_stages()} * made_.microbatches;
    while (complete_ < all) add(static_cast<std::uint32_t>(random_() % layout_.virtual_stages()));
    for (auto& stage : made_.stages)
      if (random_() % 2 == 0) stage.memory_cap += static_cast<std::uint32_t>(random_() % 3);
    return std::move(made_);
  }

 private:
  struct counts {
    std::uint32_t forwards = 0, gradients = 0, weights = 0;
  };

  void add(std::uint32_t virtual_stage) {
    auto& [forwards, gradients, weights] = slices_[virtual_stage];
    const auto [stage, chunk] = layout_.slice_at(virtual_stage);
    const bool ends_model = virtual_stage + 1 == slices_.size();
    const bool may_forward = forwards < made_.microbatches &&
                             (virtual_stage == 0 || forwards < slices_[virtual_stage - 1].forwards);
    const bool may_backward =
        gradients < forwards && (ends_model || gradients < slices_[virtual_stage + 1].gradients);
    const bool back = may_backward && (!may_forward || random_() % 4 < eagerness_[stage]);
    if (weights < gradients && (random_() % 3 == 0 || (!may_forward && !may_backward)))
      return finish({action_kind::weight_gradient, {weights++}, chunk}, stage);
    if (back && weights == gradients && random_() % 2 == 0) {
      ++weights;
      return finish({action_kind::backward, {gradients++}, chunk}, stage);
    }
    if (back) return put({action_kind::input_gradient, {gradients++}, chunk}, stage);
    if (!may_forward) return;
    put({action_kind::forward, {forwards++}, chunk}, stage);
    auto& cap = made_.stages[stage].memory_cap;
    cap = std::max(cap, ++held_[stage]);
  }

  void put(const action& what, std::uint32_t stage) { made_.stages[stage].actions.push_back(what); }
  void finish(const action& what, std::uint32_t stage) {
    put(what, stage);
    --held_[stage];
    ++complete_;
  }

  model_layout layout_;
  std::mt19937_64& random_;
  plan made_;
  std::vector<counts> slices_;
  std::vector<std::uint32_t> held_;
  std::vector<std::uint64_t> eagerness_;
  std::size_t complete_ = 0;
};

}  // namespace

plan any_plan(std::uint32_t stages, std::uint32_t microbatches, std::mt19937_64& random) {
  const auto below = [&](std::uint32_t bound) {
    return static_cast<std::uint32_t>(random() % bound);
  };
  if (below(2) == 0) {
    const auto names = built_in_schedules().names();
    schedule_choice schedule{std::string(names[below(static_cast<std::uint32_t>(names.size()))])};
    if (schedule.name == "interleaved-1f1b") schedule.chunks = below(2) + 2;
    return plan_step(schedule, stages, microbatches).value();
  }
  const auto order = below(2) ? chunk_order::looped : chunk_order::v_shaped;
  return plan_writer({stages, below(3) + 1, order}, microbatches, random).write();
}

}  // namespace troupe::tests
