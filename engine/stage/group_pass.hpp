#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/collective/norm/norm_groups.hpp"
#include "engine/stage/norm_lanes.hpp"
#include "engine/stage/stage_module.hpp"

namespace troupe::engine {

/// The members of a group of micro-batches that batch norm normalizes together, and the samples of
/// each.
struct stage_group {
  std::vector<group_member> members;
  std::vector<std::int64_t> samples;
};

struct group_outcome {
  at::Tensor activation;                // of all members, one after the other
  std::vector<microbatch_loss> losses;  // last stage: of each member
};

/// A training step's action on all members of a group: what stage_module does with each, in lanes,
/// with tensors that hold the members one after the other, on the stage's device and ready for its
/// arithmetic. Used by the stage's work thread; exceptions pass through, and a group that throws
/// has lost its step.
class group_pass {
 public:
  group_pass(stage_module& module, norm_lanes& lanes, const norm_exchange& exchange,
             const step_key& step, const stage_group& group)
      : module_(module), lanes_(lanes), exchange_(exchange), step_(step), group_(group) {}

  /// `batch_size`: of the whole batch.
  [[nodiscard]] group_outcome forward(const at::Tensor& input, const at::Tensor& labels,
                                      std::int64_t batch_size);

  /// `gradient`: of the activation; on the last stage the scale of the loss, as stage_module takes
  /// it.
  [[nodiscard]] at::Tensor backward_input(const at::Tensor& gradient);

  void backward_weights();

 private:
  [[nodiscard]] std::vector<at::Tensor> split(const at::Tensor& whole) const;
  /// Runs `body(i)` for each member, in its lane.
  template <class Body>
  void run(const Body& body);

  stage_module& module_;
  norm_lanes& lanes_;
  const norm_exchange& exchange_;
  const step_key& step_;
  const stage_group& group_;
};

}  // namespace troupe::engine
