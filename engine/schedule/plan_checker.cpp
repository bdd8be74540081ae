#include "engine/schedule/plan_checker.hpp"

#include <string>
#include <vector>

#include "engine/schedule/plan_text.hpp"
#include "engine/schedule/simulation.hpp"

namespace troupe::engine {
namespace {

tl::unexpected<error> violation(stage_id stage, const std::string& what) {
  return fail(errc::bad_config, "stage " + std::to_string(stage.value) + ": " + what);
}

/// What a walk along one stage's actions has seen so far.
struct walk {
  std::vector<bool> forwards, backwards;
  std::uint32_t next_forward = 0, next_backward = 0, held = 0;
};

result<void> check_action(const action& what, const stage_plan& steps, stage_id stage,
                          step_kind kind, walk& so_far) {
  const std::uint32_t index = what.microbatch.value;
  const std::string named = to_string(what);
  const bool is_forward = what.kind == action_kind::forward;
  auto& seen = is_forward ? so_far.forwards : so_far.backwards;
  auto& next = is_forward ? so_far.next_forward : so_far.next_backward;
  if (index >= seen.size())
    return violation(stage, named + " is not a micro-batch of this step, which has " +
                                std::to_string(seen.size()));
  if (!is_forward && kind == step_kind::evaluation)
    return violation(stage, named + " in an evaluation step, which has no backward");
  if (seen[index]) return violation(stage, named + " appears twice");
  if (!is_forward && !so_far.forwards[index])
    return violation(stage, named + " comes before F" + std::to_string(index));
  if (index != next)
    return violation(stage, named + " is out of order: " + named.substr(0, 1) +
                                std::to_string(next) + " has not come yet");
  seen[index] = true;
  ++next;
  if (!is_forward) --so_far.held;
  if (is_forward && so_far.held + 1 > steps.memory_cap)
    return violation(stage, named + " would hold " + std::to_string(so_far.held + 1) +
                                " micro-batches, over the memory cap of " +
                                std::to_string(steps.memory_cap));
  if (is_forward && kind == step_kind::training) ++so_far.held;
  return {};
}

}  // namespace

result<void> check_stage(const stage_plan& steps, stage_id stage, std::uint32_t microbatches,
                         step_kind kind) {
  if (microbatches < 1 || microbatches > max_microbatches)
    return violation(stage, std::to_string(microbatches) +
                                " micro-batches are out of range: 1 to " +
                                std::to_string(max_microbatches));
  walk so_far{std::vector<bool>(microbatches), std::vector<bool>(microbatches)};
  for (const action& what : steps.actions)
    if (auto good = check_action(what, steps, stage, kind, so_far); !good) return good;
  if (so_far.next_forward < microbatches)
    return violation(stage, "F" + std::to_string(so_far.next_forward) + " is missing");
  if (kind == step_kind::training && so_far.next_backward < microbatches)
    return violation(stage, "B" + std::to_string(so_far.next_backward) + " is missing");
  return {};
}

result<void> check(const plan& steps, step_kind kind) {
  if (steps.stages.empty() || steps.stages.size() > max_stages)
    return fail(errc::bad_config, "a plan of " + std::to_string(steps.stages.size()) +
                                      " stages is out of range: 1 to " +
                                      std::to_string(max_stages));
  for (std::uint32_t stage = 0; stage < steps.stages.size(); ++stage)
    if (auto good = check_stage(steps.stages[stage], {stage}, steps.microbatches, kind); !good)
      return good;
  auto ran = simulate(steps, std::vector<stage_cost>(steps.stages.size()));
  if (!ran) return tl::unexpected(ran.error());
  return {};
}

}  // namespace troupe::engine
