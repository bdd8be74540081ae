#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/schedule/plan.hpp"

namespace troupe::engine {

/// How long the actions of one slice of the model take with one micro-batch, in any one unit. B
/// takes what I and W take, and hands its gradient over when I is done.
struct slice_cost {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;

  bool operator==(const slice_cost&) const = default;

  [[nodiscard]] double of(action_kind kind) const noexcept;
};

/// How long messages between two stages take. They travel while both stages compute; each direction
/// between two stages carries one message after the other.
struct message_times {
  double latency = 0;                 ///< Of each message, after its transfer.
  std::vector<double> transfer = {};  ///< By virtual stage: of what a micro-batch sends across the
                                      ///< cut before it, either way; empty: none takes time.
};

/// What a plan does when every action takes its cost and every message its time.
struct simulation {
  double makespan = 0;                          ///< Start of the first to end of the last action.
  double bubble = 0;                            ///< Idle share of stages x makespan, 0..1.
  double period = 0;                            ///< Longest time from a stage's first start to its
                                                ///< last end: what a step costs when steps follow
                                                ///< each other and stages do not wait for all.
  std::vector<double> busy;                     ///< Per stage.
  std::vector<std::uint32_t> peak_activations;  ///< Per stage: held at once, each of one chunk.
  std::vector<std::vector<double>> starts;      ///< Per stage: when each action of its plan starts.
};

/// Runs a plan against a clock of its own. An action starts when its stage is free and its input is
/// there; stages follow their plan's order. `costs`: one a virtual stage of the model, in the unit
/// of `messages`. Time and memory are linear in the plan's size. Errors:
/// bad_config when there is not one cost, or one transfer where there are any, for each virtual
/// stage, a number is not finite and at least 0, or an action waits for ever (names it).
[[nodiscard]] result<simulation> simulate(const plan& steps, const std::vector<slice_cost>& costs,
                                          const message_times& messages = {});

/// The same costs for each stage of a plan, shared evenly by its chunks.
[[nodiscard]] std::vector<slice_cost> even_costs(const model_layout& layout,
                                                 const slice_cost& of_stage);

/// An action that waits for ever.
struct deadlock {
  std::uint32_t stage = 0;
  std::size_t action = 0;  ///< Index in the stage's plan.
  std::string text;        ///< "stage 0: B0 waits for ever for B0 of stage 1"
};

/// The first stage that its plan's order keeps waiting for ever, if there is one.
[[nodiscard]] std::optional<deadlock> find_deadlock(const plan& steps);

}  // namespace troupe::engine
