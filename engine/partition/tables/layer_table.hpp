#pragma once

#include <string>
#include <vector>

#include "engine/kernels/machine_rates.hpp"
#include "engine/partition/cost_model.hpp"
#include "engine/partition/planner.hpp"

namespace troupe::engine {

/// One kind of work of a step, all micro-batches together.
struct work_total {
  double seconds = 0;
  double flops = 0;  ///< As the layers count them; 0: none are counted.
  double bytes = 0;  ///< Of memory, read and written, at the least; 0: none are counted.
};

/// What a step computes in a layer, or in several.
struct layer_work {
  std::string name;
  work_total forward = {};  ///< Bytes: of its input, output and weights. With what is recomputed.
  work_total input_gradient = {};   ///< Bytes: of both gradients and its weights.
  work_total weight_gradient = {};  ///< Bytes: of its input, the output's gradient and the sums.
  work_total update = {};           ///< Bytes: those of the update that the profile measured.

  [[nodiscard]] double seconds() const noexcept {
    return forward.seconds + input_gradient.seconds + weight_gradient.seconds + update.seconds;
  }
};

/// Where the time of all stages goes in a step.
struct step_work {
  std::vector<layer_work> layers;
  double sending_s = 0;
  double idle_s = 0;

  /// The step's time as often as there are stages.
  [[nodiscard]] double seconds() const noexcept;
};

/// Of a step that `predict` has predicted from the same costs.
[[nodiscard]] step_work work_of(const cost_model& costs, const planning& how, const prediction& of);

/// A table for a terminal: a line for each layer, their sum, sending and idling, and the whole; in
/// milliseconds, and rates beside what a stage reaches at most, where that was measured.
[[nodiscard]] std::vector<std::string> to_lines(const step_work& of,
                                                const kernels::machine_rates& most);

}  // namespace troupe::engine
