#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "cluster/config/trainer_config.hpp"
#include "cluster/training/saving/data_record.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What --resume has a run go on from.
struct run_beginning {
  std::optional<whole_checkpoint> from;  ///< None: the run begins anew.
  bool is_complete = false;              ///< It has all steps, and nothing is left to do.
};

/// Whether the run is to go on from the newest checkpoint whose manifest the trainer's folder or a
/// host has: with slices on the hosts' own disks they keep copies.
[[nodiscard]] bool resumes_newest_of_hosts(const checkpoint_config& kept);

/// Whether that is known to be needed: the trainer's folder has none, or its newest cannot be read.
[[nodiscard]] bool lacks_manifests(const checkpoint_config& kept);

/// A checkpoint has all steps: an error for a user, and no more than a word for who starts the same
/// command until the run is done. Errors: bad_config.
[[nodiscard]] result<void> check_complete(const checkpoint_config& kept, const train_config& train,
                                          const setting_places& places, std::uint64_t steps,
                                          const std::filesystem::path& folder);

/// Finds it for a run of so many steps, and says so where there is none. One that has all steps is
/// gone on from where `evaluates`, the run may be started again by itself and was ended before its
/// last evaluation was told. Where the newest manifest
/// cannot be read and the hosts may have it, that is left to settle_beginning. Errors: those of
/// find_resumed; bad_config where the checkpoint has all steps and that is an error (see
/// docs/checkpoints.md).
[[nodiscard]] result<run_beginning> find_beginning(
    const trainer_config& config, const std::map<std::string, double>& model_options,
    const data_record& data, std::uint64_t steps, bool evaluates);

/// Tells a user how a run is resumed whose trainer is killed, where it writes checkpoints
/// meanwhile. `steps_before`: of what it begins from. Says nothing where the folder's newest
/// checkpoint is not that, so that `latest` might mean another run's.
void tell_command_to_resume(const trainer_config& config, std::uint64_t steps_before);

/// The same of a run that has failed behind its checkpoint of step `last`, unless that has all
/// `steps`.
void tell_way_on(const trainer_config& config, std::uint64_t last, std::uint64_t steps);

/// Up to which step a run that goes on from a checkpoint has no evaluation left to tell: one that
/// was ended before it told the evaluation of the checkpoint's own step, as an interrupted run is,
/// does that first.
[[nodiscard]] std::uint64_t evaluated_before(const whole_checkpoint& from);

}  // namespace troupe::cluster
