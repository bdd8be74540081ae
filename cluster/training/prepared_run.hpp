#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/pipeline/pipeline.hpp"
#include "cluster/training/application.hpp"
#include "cluster/training/saving/checkpoint.hpp"
#include "cluster/training/saving/data_record.hpp"
#include "engine/partition/planner.hpp"
#include "engine/stage/stage_module.hpp"

namespace troupe::cluster {

class data_on_node;

/// What is known of a run before any node starts.
struct prepared_run {
  std::shared_ptr<const engine::dataset> data;
  std::shared_ptr<data_on_node> distant;  // where another node reads them; null: this process does
  data_record of_data;                    // for its checkpoints
  engine::model_order model;
  engine::model_blueprint blueprint;
  engine::model layers;  // described: without memory
  std::vector<std::string> layer_names;
  std::vector<engine::layer_range> ranges;  // of each slice
  std::uint32_t microbatches = 1;
  std::optional<engine::prediction> predicted;  // where the layers were profiled
  std::vector<actors::stage_tie> ties;          // between stages
  std::optional<checkpoint> init;               // what it begins from; none: weights of the seed
  std::optional<whole_checkpoint> on_hosts;     // or this, of files that hosts keep on their disks
  std::uint64_t steps_before = 0;               // of the checkpoint that it goes on from
  std::uint64_t evaluated = 0;                  // see evaluated_before
  std::optional<engine::loss_scaler> scaler;    // where the loss scale is dynamic
  std::uint64_t steps = 0;                      // several may make one update (--accumulate)
  bool is_complete = false;  // a checkpoint has all of them, and nothing is left to do
};

/// A prepared run, and what it was prepared by. All outlive it.
struct planned_run {
  const application& program;
  const trainer_config& config;
  const prepared_run& run;
};

/// A model, without memory.
struct described_model {
  engine::model_order order;
  engine::model_blueprint blueprint;
  engine::model layers;
};

/// The model that the config names for such data. Errors: bad_config.
[[nodiscard]] result<described_model> describe_model(const application& program,
                                                     const trainer_config& config,
                                                     const engine::dataset& data);

/// Cuts the model for the data, and checks the contents of --init. No weights are in memory.
/// Errors: bad_config, bad_data.
[[nodiscard]] result<prepared_run> prepare(const application& program, const trainer_config& config,
                                           std::shared_ptr<const engine::dataset> data);

/// What is known of a run whose data are on another machine, once all that takes no data is
/// checked. The model's layers are known where the config names the number of classes
/// (model.classes), and the slices where it also names the cuts; else they are empty, like what
/// follows from the data. A checkpoint to go on from is not looked at. Errors: as `prepare`.
[[nodiscard]] result<prepared_run> prepare_without_data(const application& program,
                                                        const trainer_config& config);

/// Has the run begin from a checkpoint, once what this process sees of it is checked. Errors:
/// bad_data.
[[nodiscard]] result<void> begin_from(prepared_run& run, whole_checkpoint from);

/// Has the run begin from no checkpoint, but from what --init names, or else the weights of its
/// seed. Errors: as `prepare`.
[[nodiscard]] result<void> begin_anew(prepared_run& run, const model_config& model,
                                      const train_config& train);

/// The loss scale that a checkpoint on hosts' disks has, where the run's is dynamic. Errors:
/// bad_data.
[[nodiscard]] result<std::optional<engine::loss_scaler>> scaler_in(const prepared_run& run,
                                                                   const whole_checkpoint& from);

/// The state in a file from which the steps continue.
struct file_state {
  checkpoint from;
  std::optional<engine::loss_scaler> scaler;  // where the run's loss scale is dynamic
};

/// Checks that what was opened fits the run, with the optimizers' state and the loss scale. `skip`:
/// see check_start. Errors: as there.
[[nodiscard]] result<file_state> check_state(const prepared_run& run, result<checkpoint> from,
                                             const std::vector<std::string>& skip);

/// Parameters and buffers of some layers, without memory.
[[nodiscard]] std::vector<engine::named_tensor> tensors_of(const prepared_run& run,
                                                           engine::layer_range which);
[[nodiscard]] std::vector<engine::named_tensor> parameters_of(const prepared_run& run,
                                                              engine::layer_range which);

/// Tensors that the optimizer keeps for each parameter, as large as that. Errors: bad_config.
[[nodiscard]] result<std::uint64_t> tensors_a_parameter(const optimizer_config& optimizer,
                                                        const optimizers::registry& known);

/// The options for computing the model as the config says, as if in one stage. Errors: bad_config
/// for an unknown loss.
[[nodiscard]] result<engine::stage_options> stage_options_of(const train_config& train,
                                                             const model_config& model,
                                                             const registries& known);

}  // namespace troupe::cluster
