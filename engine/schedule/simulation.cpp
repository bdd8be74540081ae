#include "engine/schedule/simulation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "engine/schedule/plan_text.hpp"

namespace troupe::engine {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

/// Plays a plan. A stage goes on until it must wait, and is looked at again when a neighbour of one
/// of its slices has an output: so the work is linear in the number of actions.
class player {
 public:
  player(const plan& steps, const std::vector<slice_cost>& costs, const message_times& messages)
      : plan_(steps),
        layout_(steps.layout()),
        costs_(costs),
        messages_(messages),
        slices_(layout_.virtual_stages()),
        stages_(layout_.stages) {
    for (auto& slice : slices_)
      for (auto* times : {&slice.forward_end, &slice.gradient_end, &slice.forward_arrival,
                          &slice.gradient_arrival})
        times->assign(steps.microbatches, never);
  }

  void play() {
    for (std::uint32_t s = 0; s < stages_.size(); ++s) wake(s);
    while (!awake_.empty()) {
      const std::uint32_t s = awake_.back();
      awake_.pop_back();
      stages_[s].awake = false;
      while (advance(s)) continue;
    }
  }

  [[nodiscard]] std::optional<deadlock> stuck() const {
    for (std::uint32_t s = 0; s < stages_.size(); ++s)
      if (stages_[s].starts.size() < plan_.stages[s].actions.size()) return stuck(s);
    return std::nullopt;
  }

  simulation summary() {
    simulation made;
    double total = 0;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      auto& stage = stages_[s];
      const auto& actions = plan_.stages[s].actions;
      double busy = 0;
      for (const action& what : actions) busy += cost(s, what);
      made.makespan = std::max(made.makespan, stage.free_at);
      if (!actions.empty())
        made.period = std::max(made.period, stage.free_at - stage.starts.front());
      made.busy.push_back(busy);
      made.peak_activations.push_back(peak(plan_.stages[s]));
      made.starts.push_back(std::move(stage.starts));
      total += busy;
    }
    const double whole = made.makespan * static_cast<double>(stages_.size());
    if (whole > 0) made.bubble = 1 - total / whole;
    return made;
  }

 private:
  struct slice_progress {
    // By micro-batch; what arrives does so at the slice's neighbour.
    std::vector<double> forward_end, gradient_end, forward_arrival, gradient_arrival;
  };
  struct stage_progress {
    double free_at = 0;
    std::map<std::uint32_t, double> sent_at = {};  // by receiver: when all before has left
    std::vector<double> starts;
    bool awake = false;
  };

  [[nodiscard]] std::uint32_t virtual_stage(std::size_t s, const action& what) const {
    return layout_.virtual_stage_of({static_cast<std::uint32_t>(s), what.chunk});
  }

  [[nodiscard]] double cost(std::size_t s, const action& what) const {
    return costs_[virtual_stage(s, what)].of(what.kind);
  }

  void wake(std::uint32_t s) {
    if (std::exchange(stages_[s].awake, true)) return;
    awake_.push_back(s);
  }

  /// When a message that is ready at `end` is at the other side of the cut before virtual stage
  /// `cut`. A stage's messages are sent in the order in which it makes them.
  double send(double end, std::uint32_t from, std::uint32_t to, std::uint32_t cut) {
    if (from == to) return end;
    double& sent_at = stages_[from].sent_at[to];
    sent_at = std::max(sent_at, end) + (messages_.transfer.empty() ? 0 : messages_.transfer[cut]);
    return sent_at + messages_.latency;
  }

  [[nodiscard]] double ready_at(std::size_t s, const action& what) const {
    const std::uint32_t i = what.microbatch.value;
    if (i >= plan_.microbatches || what.chunk >= layout_.chunks) return never;
    const std::uint32_t at = virtual_stage(s, what);
    const auto& own = slices_[at];
    switch (what.kind) {
      case action_kind::forward:
        return at == 0 ? 0 : slices_[at - 1].forward_arrival[i];
      case action_kind::weight_gradient:
        return own.gradient_end[i];
      default:
        if (at + 1 == slices_.size()) return own.forward_end[i];
        return std::max(own.forward_end[i], slices_[at + 1].gradient_arrival[i]);
    }
  }

  bool advance(std::uint32_t s) {
    auto& stage = stages_[s];
    if (stage.starts.size() == plan_.stages[s].actions.size()) return false;
    const action& what = plan_.stages[s].actions[stage.starts.size()];
    const double ready = ready_at(s, what);
    if (ready == never) return false;
    const double start = std::max(stage.free_at, ready);
    stage.free_at = start + cost(s, what);
    stage.starts.push_back(start);
    const std::uint32_t at = virtual_stage(s, what);
    const bool is_whole = what.kind == action_kind::backward;
    pass_on(at, what, is_whole ? start + costs_[at].input_gradient : stage.free_at);
    return true;
  }

  void pass_on(std::uint32_t at, const action& what, double when) {
    if (what.kind == action_kind::weight_gradient) return;
    const bool is_forward = what.kind == action_kind::forward;
    auto& slice = slices_[at];
    double& end = (is_forward ? slice.forward_end : slice.gradient_end)[what.microbatch.value];
    if (end != never) return;
    end = when;
    if (is_forward ? at + 1 == slices_.size() : at == 0) return;
    const std::uint32_t from = layout_.slice_at(at).stage;
    const std::uint32_t to = layout_.slice_at(is_forward ? at + 1 : at - 1).stage;
    (is_forward ? slice.forward_arrival : slice.gradient_arrival)[what.microbatch.value] =
        send(when, from, to, is_forward ? at + 1 : at);
    wake(to);
  }

  [[nodiscard]] deadlock stuck(std::uint32_t s) const {
    const std::size_t index = stages_[s].starts.size();
    const action& what = plan_.stages[s].actions[index];
    return {s, index,
            "stage " + std::to_string(s) + ": " + to_string(what, layout_.chunks) + " " +
                reason(s, what)};
  }

  [[nodiscard]] std::string reason(std::uint32_t s, const action& what) const {
    const std::uint32_t i = what.microbatch.value;
    if (i >= plan_.microbatches) return "is not a micro-batch of this step";
    if (what.chunk >= layout_.chunks) return "is not of a chunk of this stage";
    const auto waits_for = [&](action_kind kind, std::uint32_t at) {
      const auto [stage, chunk] = layout_.slice_at(at);
      return "waits for ever for " + (stage == s ? "its own " : std::string()) +
             to_string({kind, what.microbatch, chunk}, layout_.chunks) +
             (stage == s ? "" : " of stage " + std::to_string(stage));
    };
    const std::uint32_t at = virtual_stage(s, what);
    if (what.kind == action_kind::forward) return waits_for(action_kind::forward, at - 1);
    if (slices_[at].forward_end[i] == never) return waits_for(action_kind::forward, at);
    if (what.kind == action_kind::weight_gradient)
      return waits_for(action_kind::input_gradient, at);
    return waits_for(what.kind, at + 1);
  }

  // Without a backward in the plan nothing is kept after the forward.
  static std::uint32_t peak(const stage_plan& steps) {
    const bool keeps = std::ranges::any_of(
        steps.actions, [](const action& what) { return what.kind != action_kind::forward; });
    if (!keeps) return steps.actions.empty() ? 0 : 1;
    std::int64_t held = 0, most = 0;
    for (const action& what : steps.actions) {
      if (what.kind == action_kind::forward) ++held;
      if (what.kind == action_kind::backward || what.kind == action_kind::weight_gradient) --held;
      most = std::max(most, held);
    }
    return static_cast<std::uint32_t>(most);
  }

  const plan& plan_;
  const model_layout layout_;
  const std::vector<slice_cost>& costs_;
  const message_times& messages_;
  std::vector<slice_progress> slices_;  // by virtual stage
  std::vector<stage_progress> stages_;
  std::vector<std::uint32_t> awake_;
};

bool usable(double number) {
  return std::isfinite(number) && number >= 0;
}

result<void> check_messages(const message_times& messages, std::uint32_t virtual_stages) {
  const auto wrong = [](const std::string& text) { return fail(errc::bad_config, text); };
  const auto& [latency, transfer] = messages;
  if (!usable(latency))
    return wrong("a latency must be finite and not negative, and is " + std::to_string(latency));
  if (!transfer.empty() && transfer.size() != virtual_stages)
    return wrong(std::to_string(transfer.size()) + " transfers for " +
                 std::to_string(virtual_stages) + " slices of the model");
  for (const double each : transfer)
    if (!usable(each))
      return wrong("a transfer must be finite and not negative, and is " + std::to_string(each));
  return {};
}

result<void> check_input(const plan& steps, const std::vector<slice_cost>& costs,
                         const message_times& messages) {
  const auto wrong = [](const std::string& text) { return fail(errc::bad_config, text); };
  const std::uint32_t virtual_stages = steps.layout().virtual_stages();
  if (steps.microbatches > max_microbatches)
    return wrong(std::to_string(steps.microbatches) + " micro-batches are more than " +
                 std::to_string(max_microbatches));
  if (costs.size() != virtual_stages)
    return wrong(std::to_string(costs.size()) + " costs for " + std::to_string(virtual_stages) +
                 " slices of the model");
  for (std::size_t at = 0; at < costs.size(); ++at) {
    const auto& [forward, input, weight] = costs[at];
    if (usable(forward) && usable(input) && usable(weight)) continue;
    return wrong("slice " + std::to_string(at) +
                 ": a cost must be finite and not negative, and F, I, W are " +
                 std::to_string(forward) + ", " + std::to_string(input) + ", " +
                 std::to_string(weight));
  }
  return check_messages(messages, virtual_stages);
}

}  // namespace

double slice_cost::of(action_kind kind) const noexcept {
  switch (kind) {
    case action_kind::forward:
      return forward;
    case action_kind::input_gradient:
      return input_gradient;
    case action_kind::weight_gradient:
      return weight_gradient;
    case action_kind::backward:
      break;
  }
  return input_gradient + weight_gradient;
}

result<simulation> simulate(const plan& steps, const std::vector<slice_cost>& costs,
                            const message_times& messages) {
  if (auto good = check_input(steps, costs, messages); !good) return tl::unexpected(good.error());
  player play(steps, costs, messages);
  play.play();
  if (const auto stuck = play.stuck()) return fail(errc::bad_config, stuck->text);
  return play.summary();
}

std::vector<slice_cost> even_costs(const model_layout& layout, const slice_cost& of_stage) {
  const double parts = layout.chunks;
  return std::vector<slice_cost>(layout.virtual_stages(),
                                 {of_stage.forward / parts, of_stage.input_gradient / parts,
                                  of_stage.weight_gradient / parts});
}

std::optional<deadlock> find_deadlock(const plan& steps) {
  const std::vector<slice_cost> costs(steps.layout().virtual_stages());
  const message_times at_once;
  player play(steps, costs, at_once);
  play.play();
  return play.stuck();
}

}  // namespace troupe::engine
