#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/model/layer_range.hpp"
#include "engine/partition/cost_model.hpp"
#include "engine/partition/stage_memory.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan.hpp"
#include "engine/schedule/simulation.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// A network between any two stages, beside what sending costs them. Messages travel while stages
/// compute, one after the other each way.
struct network_link {
  double bytes_per_s = 0;  ///< Each way; 0: as fast as they are sent.
  double latency_s = 0;    ///< Of a message, one way.
};

/// Where stages run and what the user bounds.
struct planning {
  schedule_choice schedule = {};
  std::uint32_t stages = 1;
  std::int64_t batch_size = 1;
  std::uint32_t cores = 1;  ///< Of the machine that all stages share.
  std::uint32_t threads_per_stage = 1;
  std::uint32_t credits = 1;  ///< Micro-batches that may wait on an edge.
  double bytes_per_s = 0;     ///< At which a stage sends; 0: by reference, at no cost.
  network_link network = {};
  double optimizer_copies = 1;       ///< Of a parameter, in the optimizer's state.
  double memory_cap_bytes = 0;       ///< Of a stage; 0: none.
  bool on_devices = false;           ///< Stages compute on GPUs: the cap is of their memory.
  double sample_bytes = 0;           ///< Of a sample that the model is given.
  std::vector<bool> recompute = {};  ///< One per layer; empty: none.
  /// Of each stage, what NCCL takes of its GPU; empty: nothing.
  std::vector<double> nccl_bytes = {};
};

struct stage_prediction {
  std::vector<layer_range> slices = {};  ///< One per chunk.
  double forward_s = 0;                  ///< A micro-batch, sending included.
  double backward_s = 0;
  double update_s = 0;  ///< A step.
  double busy_s = 0;    ///< A step, the update included.
  stage_memory memory = {};
  std::map<std::uint32_t, double> sent_bytes = {};  ///< A step, by the stage that they go to.
};

/// What a run is expected to do.
struct prediction {
  std::uint32_t microbatches = 0;
  double step_s = 0;
  double bubble = 0;  ///< Idle share of the stages' time, 0..1.
  std::vector<stage_prediction> stages = {};
  std::vector<std::size_t> cuts = {};  ///< First layer of each slice after the first.
};

/// Predicts a step with a partition and a number of micro-batches: simulates the schedule's plan
/// with the costs of its stages. If the stages have more threads than the machine has cores, a step
/// takes at least the time of all their work divided among the cores. Errors: bad_config (schedule,
/// cuts).
[[nodiscard]] result<prediction> predict(const cost_model& costs, const planning& how,
                                         std::uint32_t microbatches,
                                         const std::vector<std::size_t>& cuts);

/// The plan of a step, what its slices cost in seconds, and what it does with that: arithmetic and
/// sending, without the update, with a core for each stage. `predict` goes by it.
struct simulated_step {
  plan steps;
  std::vector<slice_cost> costs;  ///< One a virtual stage of the model.
  simulation run;
};

/// Errors: as `predict`.
[[nodiscard]] result<simulated_step> simulate_step(const cost_model& costs, const planning& how,
                                                   std::uint32_t microbatches,
                                                   const std::vector<std::size_t>& cuts);

/// Cuts for a fast step, among those that keep each stage's memory within the cap. One slice a
/// stage: the fastest slowest stage, where a stage is as slow as its arithmetic or its sending
/// (after Narayanan et al., "PipeDream", 2019); dynamic programming, O(stages * layers^2). Several:
/// of the cuts that a search finds to load the stages evenly, the one whose predicted step is the
/// fastest. Errors: bad_config for more slices than layers, and for a cap that no cut meets (says
/// the least that would do; with several slices a stage, the least that was found to).
[[nodiscard]] result<std::vector<std::size_t>> plan_cuts(const cost_model& costs,
                                                         const planning& how,
                                                         std::uint32_t microbatches);

/// The numbers of micro-batches that are worth a try: all that leave each at least two samples,
/// which batch norm needs, where the batch has as many; 64 at most.
[[nodiscard]] std::vector<std::uint32_t> microbatches_to_try(const planning& how);

/// The number of micro-batches, among `candidates` (rising), whose predicted step is the fastest;
/// of equals the smallest. `cuts` null: planned for each number, and numbers without a plan are
/// passed over. Errors: bad_config for no candidate; those of `predict`; those of `plan_cuts` for
/// the last candidate, which comes nearest, where it has none for any.
[[nodiscard]] result<prediction> plan_microbatches(const cost_model& costs, const planning& how,
                                                   const std::vector<std::uint32_t>& candidates,
                                                   const std::vector<std::size_t>* cuts);

}  // namespace troupe::engine
