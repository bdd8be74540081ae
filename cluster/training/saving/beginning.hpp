#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "cluster/config/config_tables.hpp"
#include "cluster/config/setting_places.hpp"
#include "cluster/training/saving/data_record.hpp"
#include "engine/data/dataset.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The settings by which a run keeps checkpoints, and those that a checkpoint that it resumes has
/// to have too. The config outlives it.
struct checkpointed_run {
  const checkpoint_config& kept;
  const model_config& model;
  const train_config& train;
  const data_config& data;
  const setting_places& places;
  /// Those that, with a checkpoint, determine every bit of the steps after it. A resumed run may
  /// therefore not change them: the order of samples, random draws, and the model with its options.
  std::map<std::string, std::string> settings;
  data_record of_data;
  /// Of all its settings those that are no defaults, as its checkpoints tell them.
  std::map<std::string, std::string> changed = {};

  /// `model_options`: a name with a table before it ("server.workers") belongs to that table.
  checkpointed_run(const trainer_config& config, const std::map<std::string, double>& model_options,
                   data_record own_data = {});
};

/// Whether the run has the checkpoint's settings and data. Errors: bad_config naming a setting that
/// differs, or saying that the data differ.
[[nodiscard]] result<void> check_settings(const whole_checkpoint& of, const checkpointed_run& run);

/// For a run that nobody watches: the newest checkpoint before a step that is whole; what is torn
/// is passed over with a warning. Errors: bad_config where that would be one of a newer Troupe;
/// those of checkpoint_folder::newest.
[[nodiscard]] result<std::optional<whole_checkpoint>> pass_over_torn(
    const checkpoint_folder& folder,
    std::uint64_t before = std::numeric_limits<std::uint64_t>::max());

/// The checkpoint that the run resumes from. None if --resume is not given, if it is "latest" and
/// there is no checkpoint yet, or if it is "auto" and no checkpoint is whole. Warns of those that
/// are passed over. Errors: bad_data; bad_config for one of a newer Troupe; those of
/// check_settings.
[[nodiscard]] result<std::optional<whole_checkpoint>> find_resumed(const checkpointed_run& run);

/// For a checkpoint that --resume names by its folder or manifest, and that cannot be read: why,
/// and which older one beside it is whole.
[[nodiscard]] error offering_older(error why, const std::string& resume);

/// What a run with --resume starts from.
struct run_beginning {
  std::optional<whole_checkpoint> from;  ///< None: the run starts from the beginning.
  bool is_complete = false;              ///< It has all steps, and nothing is left to do.
};

/// Whether the run resumes from the newest checkpoint whose manifest is in the trainer's folder or
/// on a host. Hosts that keep slices on their own disks keep copies of the manifests too.
[[nodiscard]] bool resumes_newest_of_hosts(const checkpoint_config& kept);

/// Whether the hosts' copies are needed: the trainer's folder has no manifest, or its newest one
/// cannot be read.
[[nodiscard]] bool lacks_manifests(const checkpoint_config& kept);

/// Whether a run with these data is evaluated.
[[nodiscard]] bool evaluates(const train_config& train, const engine::dataset& data);

/// Whether a run of so many steps has nothing left to do after the checkpoint `of`: it has all
/// steps, and with --resume auto, if the run evaluates, its last evaluation was reported. That
/// setting is for starting the same command until the run is done: what is left of a run with all
/// steps is logged, and without it such a checkpoint is an error. Errors: bad_config.
[[nodiscard]] result<bool> is_complete(const checkpointed_run& run, const whole_checkpoint& of,
                                       std::uint64_t steps, const engine::dataset& data);

/// Finds the checkpoint that a run of so many steps resumes from, and logs it if there is none. A
/// checkpoint that has all steps is resumed if the run is not complete. If the newest manifest
/// cannot be read and the hosts may have a copy, find_beginning_on_hosts looks for it. Errors:
/// those of find_resumed and is_complete; see docs/checkpoints.md.
[[nodiscard]] result<run_beginning> find_beginning(const checkpointed_run& run, std::uint64_t steps,
                                                   const engine::dataset& data);

/// Logs the command that resumes this run if its trainer is killed, provided that the run writes
/// checkpoints as it goes. `command`: the one of this run; `steps_before`: the steps in what it
/// starts from. Logs nothing if the newest checkpoint in the folder has another step: then `latest`
/// might be another run's.
void tell_command_to_resume(const checkpoint_config& kept, const train_config& train,
                            const std::vector<std::string>& command, std::uint64_t steps_before);

/// Logs the command that resumes a failed run, whose last checkpoint is of step `last`; nothing if
/// that has all `steps`.
void tell_way_on(const checkpoint_config& kept, const train_config& train,
                 const std::vector<std::string>& command, std::uint64_t last, std::uint64_t steps);

/// The last step up to which no evaluation is due in a run that resumes from this checkpoint. That
/// is the step before the checkpoint's own if the evaluation at the checkpoint was not reported, as
/// when the run was interrupted: the resumed run evaluates first.
[[nodiscard]] std::uint64_t evaluated_before(const whole_checkpoint& from);

}  // namespace troupe::cluster
