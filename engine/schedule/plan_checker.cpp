#include "engine/schedule/plan_checker.hpp"

#include <algorithm>
#include <vector>

#include "engine/schedule/plan_text.hpp"
#include "engine/schedule/simulation.hpp"

namespace troupe::engine {
namespace {

using rule = std::optional<std::string>;  // what a broken one says

/// What a walk along one stage's actions has seen of a chunk. Micro-batches come in order within a
/// kind, so counts say which have been.
struct chunk_walk {
  std::uint32_t forwards = 0;
  std::uint32_t gradients = 0;  // I or B
  std::uint32_t weights = 0;    // W or B
  std::vector<bool> whole;      // by micro-batch: its I-like action is a B
};

class stage_walk {
 public:
  stage_walk(const stage_plan& steps, std::uint32_t microbatches, std::uint32_t chunks,
             step_kind kind)
      : steps_(steps), microbatches_(microbatches), kind_(kind), chunks_(chunks) {
    for (auto& chunk : chunks_) chunk.whole.resize(microbatches);
  }

  /// The rule that the next action breaks, if it does.
  rule take(const action& what) {
    if (auto broken = range(what)) return broken;
    chunk_walk& chunk = chunks_[what.chunk];
    switch (what.kind) {
      case action_kind::forward:
        return forward(what, chunk);
      case action_kind::input_gradient:
        return gradient(what, chunk);
      case action_kind::backward:
        if (auto broken = gradient(what, chunk)) return broken;
        chunk.whole[what.microbatch.value] = true;
        return weights(what, chunk);
      case action_kind::weight_gradient:
        return weights(what, chunk);
    }
    return "an action of no kind";
  }

  /// What is missing at the end.
  [[nodiscard]] rule missing() const {
    for (std::uint32_t c = 0; c < chunks_.size(); ++c) {
      const chunk_walk& chunk = chunks_[c];
      if (chunk.forwards < microbatches_)
        return name(action_kind::forward, chunk.forwards, c) + " is missing";
      if (kind_ == step_kind::evaluation) continue;
      if (chunk.gradients < microbatches_)
        return name(action_kind::backward, chunk.gradients, c) + " is missing";
      if (chunk.weights < microbatches_)
        return name(action_kind::weight_gradient, chunk.weights, c) + " is missing";
    }
    return std::nullopt;
  }

 private:
  [[nodiscard]] std::string name(const action& what) const {
    return to_string(what, static_cast<std::uint32_t>(chunks_.size()));
  }
  [[nodiscard]] std::string name(action_kind kind, std::uint32_t microbatch,
                                 std::uint32_t chunk) const {
    return name({kind, {microbatch}, chunk});
  }

  [[nodiscard]] rule range(const action& what) const {
    if (what.microbatch.value >= microbatches_)
      return name(what) + " is not a micro-batch of this step, which has " +
             std::to_string(microbatches_);
    if (what.chunk >= chunks_.size())
      return name(what) + " is of chunk " + std::to_string(what.chunk) + ", the stage has " +
             std::to_string(chunks_.size());
    if (what.kind != action_kind::forward && kind_ == step_kind::evaluation)
      return name(what) + " in an evaluation step, which has no backward";
    return std::nullopt;
  }

  rule forward(const action& what, chunk_walk& chunk) {
    if (auto broken = order(what, chunk.forwards, action_kind::forward)) return broken;
    if (held_ + 1 > steps_.memory_cap)
      return name(what) + " would hold " + std::to_string(held_ + 1) +
             " activations, over the memory cap of " + std::to_string(steps_.memory_cap);
    ++chunk.forwards;
    if (kind_ == step_kind::training) ++held_;
    return std::nullopt;
  }

  /// I, or the first half of B.
  rule gradient(const action& what, chunk_walk& chunk) {
    const std::uint32_t index = what.microbatch.value;
    const bool is_whole = what.kind == action_kind::backward;
    if (index < chunk.gradients && chunk.whole[index] != is_whole)
      return name(what) + " comes beside " +
             name(is_whole ? action_kind::input_gradient : action_kind::backward, index,
                  what.chunk) +
             ": a micro-batch goes backward once";
    if (index >= chunk.forwards)
      return name(what) + " comes before " + name(action_kind::forward, index, what.chunk);
    if (auto broken = order(what, chunk.gradients, what.kind)) return broken;
    ++chunk.gradients;
    return std::nullopt;
  }

  /// W, or the second half of B.
  rule weights(const action& what, chunk_walk& chunk) {
    const std::uint32_t index = what.microbatch.value;
    if (what.kind == action_kind::weight_gradient) {
      if (index >= chunk.gradients)
        return name(what) + " comes before " + name(action_kind::input_gradient, index, what.chunk);
      if (chunk.whole[index])
        return name(what) + " comes beside " + name(action_kind::backward, index, what.chunk) +
               ": a micro-batch goes backward once";
    }
    if (auto broken = order(what, chunk.weights, action_kind::weight_gradient)) return broken;
    ++chunk.weights;
    --held_;
    return std::nullopt;
  }

  /// `next`: the micro-batch whose turn it is.
  [[nodiscard]] rule order(const action& what, std::uint32_t next, action_kind kind) const {
    if (what.microbatch.value < next) return name(what) + " appears twice";
    if (what.microbatch.value == next) return std::nullopt;
    return name(what) + " is out of order: " + name(kind, next, what.chunk) + " has not come yet";
  }

  const stage_plan& steps_;
  std::uint32_t microbatches_;
  step_kind kind_;
  std::vector<chunk_walk> chunks_;
  std::uint32_t held_ = 0;
};

std::optional<violation> stage_violation(const stage_plan& steps, std::uint32_t stage,
                                         std::uint32_t microbatches, std::uint32_t chunks,
                                         step_kind kind) {
  const auto breaks = [stage](std::size_t at, const std::string& broken) {
    return violation{stage, at, "stage " + std::to_string(stage) + ": " + broken};
  };
  if (microbatches < 1 || microbatches > max_microbatches)
    return breaks(0, std::to_string(microbatches) + " micro-batches are out of range: 1 to " +
                         std::to_string(max_microbatches));
  if (chunks < 1 || chunks > max_chunks)
    return breaks(
        0, std::to_string(chunks) + " chunks are out of range: 1 to " + std::to_string(max_chunks));
  stage_walk walk(steps, microbatches, chunks, kind);
  for (std::size_t i = 0; i < steps.actions.size(); ++i)
    if (const auto broken = walk.take(steps.actions[i])) return breaks(i, *broken);
  if (const auto broken = walk.missing()) return breaks(steps.actions.size(), *broken);
  return std::nullopt;
}

result<void> as_result(const std::optional<violation>& found) {
  if (!found) return {};
  return fail(errc::bad_config, found->text);
}

}  // namespace

std::optional<violation> find_violation(const plan& steps, step_kind kind) {
  if (steps.stages.empty() || steps.stages.size() > max_stages)
    return violation{std::nullopt, 0,
                     "a plan of " + std::to_string(steps.stages.size()) +
                         " stages is out of range: 1 to " + std::to_string(max_stages)};
  for (std::uint32_t s = 0; s < steps.stages.size(); ++s)
    if (auto found = stage_violation(steps.stages[s], s, steps.microbatches, steps.chunks, kind))
      return found;
  if (const auto stuck = find_deadlock(steps))
    return violation{stuck->stage, stuck->action, stuck->text};
  return std::nullopt;
}

bool is_part_of(const plan& shorter, const plan& longer) {
  const auto meetings_of = [&](const stage_plan& stage) {
    std::vector<action> all;
    for (auto each : stage.actions) {
      if (each.kind == action_kind::weight_gradient ||
          each.microbatch.value >= shorter.microbatches)
        continue;
      if (each.kind == action_kind::input_gradient) each.kind = action_kind::backward;
      all.push_back(each);
    }
    return all;
  };
  return std::ranges::equal(shorter.stages, longer.stages, {}, meetings_of, meetings_of);
}

result<void> check(const plan& steps, step_kind kind) {
  return as_result(find_violation(steps, kind));
}

result<void> check_stage(const stage_plan& steps, stage_id stage, std::uint32_t microbatches,
                         std::uint32_t chunks, step_kind kind) {
  return as_result(stage_violation(steps, stage.value, microbatches, chunks, kind));
}

}  // namespace troupe::engine
