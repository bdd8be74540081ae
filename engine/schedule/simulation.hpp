#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/plan.hpp"

namespace troupe::engine {

/// How long a stage's actions take, in any one unit.
struct stage_cost {
  double forward = 1;
  double backward = 2;
};

/// What a plan does when every action takes its cost and messages take no time.
struct simulation {
  double makespan = 0;                          ///< Start of the first to end of the last action.
  double bubble = 0;                            ///< Idle share of stages x makespan, 0..1.
  std::vector<double> busy;                     ///< Per stage.
  std::vector<std::uint32_t> peak_activations;  ///< Per stage: micro-batches held at once.
  std::vector<std::vector<double>> starts;      ///< Per stage: when each action of its plan starts.
};

/// Runs a plan against a clock of its own. An action starts when its stage is free and its input is
/// there; stages follow their plan's order. Errors: bad_config when there is not one finite,
/// non-negative cost for each stage, or an action waits for ever (names it).
[[nodiscard]] result<simulation> simulate(const plan& steps, const std::vector<stage_cost>& costs);

}  // namespace troupe::engine
