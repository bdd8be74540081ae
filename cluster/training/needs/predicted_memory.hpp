#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/training/application.hpp"
#include "cluster/training/prepared_run.hpp"
#include "engine/partition/model_profile.hpp"
#include "engine/partition/stage_memory.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a keeper that shares no memory with a stage is sent of each version, in bytes.
struct sent_version {
  double state = 0;   ///< Of all of it.
  double update = 0;  ///< Of what makes it of the one before, where the stage is on a CPU.

  /// Whether the update is sent (see actors::version_forms_core).
  [[nodiscard]] bool is_update(bool on_gpu) const { return !on_gpu && update < state; }
};

/// Peak memory of a run's processes and of their GPUs, beside what the program itself and CUDA's
/// libraries take, in bytes.
struct predicted_memory {
  /// Of each stage: parameters, gradients (the step's sum and a micro-batch's), the optimizer's
  /// state, the activations of the micro-batches in flight, what waits on its edges, and the
  /// largest layer of the model, because a stage draws every layer in turn; and where the run is to
  /// go on after a loss, the versions that are kept there and what the stage remembers of what it
  /// sent. A GPU has all of that but what is only on hosts: layers before they are moved, messages
  /// between processes, and versions and files of checkpoints.
  std::vector<engine::stage_memory> stages;
  /// The batch in use and the one that is read ahead, unless a node reads them, and those that a
  /// lost stage may need again; it has no weights, but the versions that it keeps. Those that
  /// stages lend it are in their memory, and the trainer shows them only once it has read them.
  double trainer = 0;
  /// The process that outlives the trainer, where there is one: the versions that it keeps of
  /// stages which do not lend them, and what it has of their next ones until they are whole. Those
  /// that are lent are in the stages' memory.
  double keeper = 0;
  /// What is counted above for stages that only map it: versions of other stages of the same
  /// machine, which are in memory once, at their own stage.
  double mapped = 0;
  /// By stage; nullopt: its versions are lent, or there are none.
  std::vector<std::optional<sent_version>> sent = {};
};

/// Whether processes of one machine borrow all tensors of a version of the model. Where a layer has
/// more than a piece may, some may be cut to be sent, and are copied by whoever keeps them.
[[nodiscard]] bool are_lent_whole(const prepared_run& run);

/// Bytes of activations are measured: each layer is built and runs forward once, one layer at a
/// time, with a micro-batch of the data, in a process of its own where measure_in_process can have
/// one. The rest is counted. Errors: see measure_activations.
[[nodiscard]] result<predicted_memory> predict_memory(const planned_run& of);

/// The stages' part of that, for a run whose start does not depend on it.
struct expected_memory {
  std::vector<engine::stage_memory> stages = {};
  std::string why_not = {};  ///< Where they are not predicted.
};

/// Errors: of predict_memory, where the stages are to run here and cannot; what else keeps them
/// from being predicted keeps no run from starting.
[[nodiscard]] result<expected_memory> expect_memory(const planned_run& of);

/// What is measured for it with so many samples in a micro-batch. Errors: those of opening the data
/// and of measure_activations.
[[nodiscard]] result<engine::model_profile> measure_layers(const application& program,
                                                           const trainer_config& config,
                                                           std::int64_t samples);

}  // namespace troupe::cluster
