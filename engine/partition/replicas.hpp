#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/partition/planner.hpp"

namespace troupe::engine {

/// What replicas of one stage are expected to do in the place of a pipeline's stages.
struct replica_prediction {
  std::uint32_t replicas = 1;
  std::uint32_t microbatches = 0;  ///< In the whole batch.
  double step_s = 0;
  double sum_s = 0;  ///< Of `step_s`: gradients are summed, and nothing is computed meanwhile.
  stage_memory memory = {};  ///< Of a replica.
};

/// What a step takes with `how.stages` replicas, each of the whole model in one stage, on the same
/// cores and links; the schedule and the memory cap do not count. A batch is cut into so many
/// micro-batches, and the replica with the most of them decides. The sum over replicas is taken to
/// hide behind the last micro-batch's weight gradients only as far as the network carries it: the
/// cores that add are those that compute. Errors: bad_config for less than a micro-batch a replica.
[[nodiscard]] result<replica_prediction> predict_replicas(const cost_model& costs,
                                                          const planning& how,
                                                          std::uint32_t microbatches);

/// The number of micro-batches among `candidates` whose step is the fastest; numbers that leave a
/// replica without one are passed over. Errors: bad_config if that leaves none.
[[nodiscard]] result<replica_prediction> plan_replicas(
    const cost_model& costs, const planning& how, const std::vector<std::uint32_t>& candidates);

/// Which of the two is faster and by how much, in lines for a terminal; the last one says the
/// options of a run with replicas.
[[nodiscard]] std::vector<std::string> compare(const replica_prediction& replicas,
                                               const prediction& pipeline, const planning& how);

}  // namespace troupe::engine
