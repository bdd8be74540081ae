#include "engine/schedule/simulation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "engine/schedule/plan_text.hpp"

namespace troupe::engine {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

class player {
 public:
  player(const plan& steps, const std::vector<stage_cost>& costs)
      : plan_(steps), costs_(costs), stages_(steps.stages.size()) {
    const std::vector<double> none(steps.microbatches, never);
    for (auto& stage : stages_) stage = {0, 0, none, none, {}};
  }

  result<simulation> play() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < stages_.size(); ++s)
        while (advance(s)) moved = true;
    }
    for (std::size_t s = 0; s < stages_.size(); ++s)
      if (stages_[s].next < plan_.stages[s].actions.size()) return stuck(s);
    return summary();
  }

 private:
  struct progress {
    std::size_t next = 0;
    double free_at = 0;
    std::vector<double> forward_end, backward_end;  // by micro-batch
    std::vector<double> starts;
  };

  double ready_at(std::size_t s, const action& what) const {
    const std::uint32_t i = what.microbatch.value;
    if (i >= plan_.microbatches) return never;
    if (what.kind == action_kind::forward) return s == 0 ? 0 : stages_[s - 1].forward_end[i];
    const double own = stages_[s].forward_end[i];
    return s + 1 == stages_.size() ? own : std::max(own, stages_[s + 1].backward_end[i]);
  }

  bool advance(std::size_t s) {
    auto& stage = stages_[s];
    if (stage.next == plan_.stages[s].actions.size()) return false;
    const action& what = plan_.stages[s].actions[stage.next];
    const double ready = ready_at(s, what);
    if (ready == never) return false;
    const bool is_forward = what.kind == action_kind::forward;
    const double start = std::max(stage.free_at, ready);
    stage.free_at = start + (is_forward ? costs_[s].forward : costs_[s].backward);
    stage.starts.push_back(start);
    auto& end = (is_forward ? stage.forward_end : stage.backward_end)[what.microbatch.value];
    end = std::min(end, stage.free_at);
    ++stage.next;
    return true;
  }

  tl::unexpected<error> stuck(std::size_t s) const {
    const action& what = plan_.stages[s].actions[stages_[s].next];
    const std::string index = std::to_string(what.microbatch.value);
    std::string waits;
    if (what.microbatch.value >= plan_.microbatches)
      waits = "is not a micro-batch of this step";
    else if (what.kind == action_kind::forward)
      waits = "waits for ever for F" + index + " of stage " + std::to_string(s - 1);
    else if (stages_[s].forward_end[what.microbatch.value] == never)
      waits = "waits for ever for its own F" + index;
    else
      waits = "waits for ever for B" + index + " of stage " + std::to_string(s + 1);
    return fail(errc::bad_config,
                "stage " + std::to_string(s) + ": " + to_string(what) + " " + waits);
  }

  // Without a backward in the plan nothing is kept after the forward.
  static std::uint32_t peak(const stage_plan& steps) {
    const bool keeps = std::ranges::any_of(
        steps.actions, [](const action& what) { return what.kind == action_kind::backward; });
    if (!keeps) return steps.actions.empty() ? 0 : 1;
    std::int64_t held = 0, most = 0;
    for (const action& what : steps.actions) {
      held += what.kind == action_kind::forward ? 1 : -1;
      most = std::max(most, held);
    }
    return static_cast<std::uint32_t>(most);
  }

  simulation summary() {
    simulation made;
    double total = 0;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      double busy = 0;
      for (const action& what : plan_.stages[s].actions)
        busy += what.kind == action_kind::forward ? costs_[s].forward : costs_[s].backward;
      made.makespan = std::max(made.makespan, stages_[s].free_at);
      made.busy.push_back(busy);
      made.peak_activations.push_back(peak(plan_.stages[s]));
      made.starts.push_back(std::move(stages_[s].starts));
      total += busy;
    }
    const double whole = made.makespan * static_cast<double>(stages_.size());
    if (whole > 0) made.bubble = 1 - total / whole;
    return made;
  }

  const plan& plan_;
  const std::vector<stage_cost>& costs_;
  std::vector<progress> stages_;
};

}  // namespace

result<simulation> simulate(const plan& steps, const std::vector<stage_cost>& costs) {
  if (costs.size() != steps.stages.size())
    return fail(errc::bad_config, std::to_string(costs.size()) + " costs for " +
                                      std::to_string(steps.stages.size()) + " stages");
  if (steps.microbatches > max_microbatches)
    return fail(errc::bad_config, std::to_string(steps.microbatches) +
                                      " micro-batches are more than " +
                                      std::to_string(max_microbatches));
  const auto usable = [](double cost) { return std::isfinite(cost) && cost >= 0; };
  for (std::size_t s = 0; s < costs.size(); ++s)
    if (!usable(costs[s].forward) || !usable(costs[s].backward))
      return fail(errc::bad_config, "stage " + std::to_string(s) +
                                        ": a cost must be finite and not negative, and is " +
                                        std::to_string(costs[s].forward) + " forward, " +
                                        std::to_string(costs[s].backward) + " backward");
  return player(steps, costs).play();
}

}  // namespace troupe::engine
