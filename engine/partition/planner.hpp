#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/partition/model_profile.hpp"
#include "engine/schedule/plan.hpp"
#include "engine/schedule/simulation.hpp"
#include "messages/error.hpp"

namespace troupe::engine {

/// What layers cost at any size of micro-batch: a fixed price and one for each image, the line
/// through two profiles of different sizes. Through one profile: no fixed price is known, so it
/// holds at that size only.
class cost_model {
 public:
  /// One or two profiles of the same layers. Errors: bad_config when they do not match.
  [[nodiscard]] static result<cost_model> fit(const std::vector<model_profile>& profiles);

  [[nodiscard]] model_profile at(double images) const;
  [[nodiscard]] std::size_t layers() const noexcept { return fixed_.layers.size(); }

 private:
  model_profile fixed_;     // seconds and bytes whatever the size
  model_profile an_image_;  // and for each image
};

/// Where stages run and what the user bounds.
struct planning {
  std::string schedule = "1f1b";
  std::uint32_t stages = 1;
  std::int64_t batch_size = 1;
  std::uint32_t cores = 1;  ///< Of the machine that all stages share.
  std::uint32_t threads_per_stage = 1;
  std::uint32_t credits = 1;         ///< Micro-batches that may wait on an edge.
  double bytes_per_s = 0;            ///< Between neighbours; 0: by reference, at no cost.
  double optimizer_copies = 1;       ///< Of a parameter, in the optimizer's state.
  double memory_cap_bytes = 0;       ///< Of a stage; 0: none.
  std::vector<bool> recompute = {};  ///< One a layer; empty: none.
};

struct stage_prediction {
  std::size_t first = 0;  ///< Its layers: [first, last).
  std::size_t last = 0;
  double forward_s = 0;  ///< A micro-batch, sending included.
  double backward_s = 0;
  double busy_s = 0;  ///< A step, the update included.
  double memory_bytes = 0;
  double sent_bytes = 0;  ///< To its neighbours, a step.
};

/// What a run is expected to do.
struct prediction {
  std::uint32_t microbatches = 0;
  double step_s = 0;
  double bubble = 0;  ///< Idle share of the stages' time, 0..1.
  std::vector<stage_prediction> stages;

  /// First layer of each stage after the first.
  [[nodiscard]] std::vector<std::size_t> cuts() const;
};

/// What a partition and number of micro-batches would give: plays the schedule's plan with the
/// costs of its stages. Where the stages have more threads than the machine cores, a step takes at
/// least all their work shared among the cores. Errors: bad_config (schedule, cuts).
[[nodiscard]] result<prediction> predict(const cost_model& costs, const planning& how,
                                         std::uint32_t microbatches,
                                         const std::vector<std::size_t>& cuts);

/// The plan of a step, what its slices cost in seconds, and what it does with that: arithmetic and
/// sending, without the update, with a core for each stage. `predict` goes by it.
struct rehearsal {
  plan steps;
  std::vector<slice_cost> costs;  ///< One a position of the model.
  simulation run;
};

/// Errors: as `predict`.
[[nodiscard]] result<rehearsal> rehearse(const cost_model& costs, const planning& how,
                                         std::uint32_t microbatches,
                                         const std::vector<std::size_t>& cuts);

/// Cuts for the fastest slowest stage, where a stage is as slow as its arithmetic or its sending,
/// among the cuts that keep each stage's memory within the cap (after Narayanan et al.,
/// "PipeDream", 2019): dynamic programming, O(stages * layers^2). Errors: bad_config for more
/// stages than layers, and for a cap that no cut meets (says the least that would do).
[[nodiscard]] result<std::vector<std::size_t>> plan_cuts(const cost_model& costs,
                                                         const planning& how,
                                                         std::uint32_t microbatches);

/// The numbers of micro-batches that are worth a try: all that leave each at least two samples,
/// which batch norm needs, where the batch has as many; 64 at most.
[[nodiscard]] std::vector<std::uint32_t> microbatches_to_try(const planning& how);

/// The number of micro-batches, among `candidates`, whose predicted step is the fastest; of equals
/// the smallest. `cuts` empty: planned anew for each number. Errors: those of `plan_cuts`, of the
/// candidate that comes nearest.
[[nodiscard]] result<prediction> plan_microbatches(const cost_model& costs, const planning& how,
                                                   const std::vector<std::uint32_t>& candidates,
                                                   const std::vector<std::size_t>* cuts);

}  // namespace troupe::engine
