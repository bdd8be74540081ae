#pragma once

#include <caf/actor_control_block.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/interfaces.hpp"
#include "actors/transfer/piece.hpp"
#include "engine/collective/edge_transport.hpp"
#include "engine/collective/sum_choice_core.hpp"
#include "engine/model/layer.hpp"
#include "engine/model/layer_range.hpp"
#include "engine/step/edge.hpp"
#include "engine/step/loss_scaler.hpp"

namespace troupe::engine {
struct model_layout;
}  // namespace troupe::engine

namespace troupe::actors {

/// A tied weight: two stages each hold a copy of it, under their own parameter's name.
struct stage_tie {
  std::size_t stage = 0;
  std::string parameter;
  std::size_t other_stage = 0;
  std::string other_parameter;
};

/// Options of a pipeline.
struct pipeline_options {
  std::uint32_t credits = engine::default_credits;  ///< See `compose`.
  std::vector<stage_tie> ties = {};                 ///< Between different stages.
  /// Whether all stages skip a step whose loss or gradients are not finite; otherwise it is an
  /// error.
  bool skip_bad_steps = false;
  double loss_scale = 1;  ///< Factor of each loss, by which its gradients are divided.
  /// Dynamic loss scaling, instead of `loss_scale`. All stages skip a step whose gradients
  /// overflowed, whatever `skip_bad_steps` says, unless the scale can fall no further or the loss
  /// itself is not finite.
  std::optional<engine::loss_scaler> scaler = {};
  /// Training steps that were made before with these weights. Step numbers, by which layers draw
  /// random numbers, continue from there.
  std::uint64_t steps_before = 0;
  double clip_norm = 0;  ///< Maximum norm of all stages' gradients together; 0: any.
  /// Limits of one message of weights or optimizer state.
  piece_limits pieces = {};
  /// The reader of the batches, perhaps on another node: it feeds the pipeline from its own node,
  /// and no other pipeline any more. Null: a feeder of this process does.
  data_actor data = {};
  /// The number of pipelines of the same stages that share each batch and sum their gradients.
  /// Their stages are given one replica after the other.
  std::uint32_t replicas = 1;
  /// Determines how a batch is divided and in which order the parts are summed, and with that the
  /// bits; a replica stands for one or several logical ones. A multiple of `replicas` by a power of
  /// two, or any number with one replica. 0: `replicas`.
  std::uint32_t logical_replicas = 0;
  /// The replicas of a stage shard its optimizer's state: each updates the parameters that it owns,
  /// and sends them to the others (Rajbhandari et al., "ZeRO", 2020, stage 1). The bits are the
  /// same.
  bool shares_state = false;
  /// Batch norm normalizes the micro-batches of one index in all logical replicas together, in
  /// training, as torch.nn.SyncBatchNorm does (docs/replicas.md). Without effect where there is one
  /// logical replica.
  bool synced_norm = false;
  /// How replicas of a stage may sum their gradients: with a collective library of their devices
  /// if possible (see engine::choose_sum), otherwise over links.
  engine::sum_wish sums = {};
  /// How stages of different processes send each other activations and gradients; an error where
  /// they cannot (see engine::reach_between). Unless it is by links a lost stage is not replaced
  /// alone, whatever `logs_edges` says.
  engine::edge_transport edges = engine::edge_transport::link;
  /// For each stage, the keeper_actors that hold its versions, so that a run can continue after the
  /// loss of a stage: first the one beside the stage, and then others elsewhere. No stage then ends
  /// a step before all stages have stored the version before it. Empty: no versions are kept.
  std::vector<std::vector<caf::strong_actor_ptr>> keepers = {};
  /// The one of them that may be lost without another one in its place: stages go on with the
  /// others. Null: none is.
  caf::strong_actor_ptr spare_keeper = {};
  /// With keepers: stages and feeders remember what they send in the last steps, so that lost
  /// stages can be replaced; see `replay`. Without effect for replicas that are not replaceable
  /// (see replica_group).
  bool logs_edges = false;
  std::uint32_t accumulate = 1;  ///< Of the stages, see update_rules.
};

/// The ties of a model between different stages, given the layers of each slice and where the
/// slices lie. Ties inside a stage, also between its chunks, are handled by the stage.
[[nodiscard]] std::vector<stage_tie> ties_between(const engine::model& layers,
                                                  const std::vector<engine::layer_range>& ranges,
                                                  const engine::model_layout& layout);

}  // namespace troupe::actors
