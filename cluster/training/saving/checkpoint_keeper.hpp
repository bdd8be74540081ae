#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>

#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "cluster/config/trainer_config.hpp"
#include "cluster/training/saving/saving.hpp"
#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {

/// Settings that decide, with a checkpoint, what the steps after it are to the bit, and that a run
/// may not change therefore: which samples come when, what is drawn, and the model with its own
/// options. `model_options`: one whose name has a table before it ("server.workers") is of that.
[[nodiscard]] std::map<std::string, std::string> settings_of_steps(
    const trainer_config& config, const std::map<std::string, double>& model_options);

/// The checkpoint that the run is to go on from; none: --resume names none, or "latest" where there
/// is none yet, or "auto" where none is whole. Warns of what is passed over. Errors: bad_data, and
/// bad_config naming a setting that is another one than the checkpoint's.
[[nodiscard]] result<std::optional<whole_checkpoint>> find_resumed(
    const trainer_config& config, const std::map<std::string, double>& model_options);

/// Writes a run's checkpoints when they are due. Does nothing where [checkpoint] names no folder.
/// Used by one thread; its destructor waits for what is under way.
class checkpoint_keeper {
 public:
  using clock = std::chrono::steady_clock;

  /// `config` outlives it. `steps`: that are in what the run begins with. Errors: io_failed, where
  /// no checkpoint can be written, or another run has the folder.
  [[nodiscard]] static result<checkpoint_keeper> open(
      const trainer_config& config, const std::map<std::string, double>& model_options,
      std::uint64_t steps, clock::time_point now);

  /// Whether [checkpoint] names a folder.
  [[nodiscard]] bool are_kept() const { return !config_->checkpoint.dir.empty(); }

  /// Warns where the disk has less room than one more checkpoint's weights need.
  void warn_of_little_room(std::uint64_t weight_bytes) const;

  /// Whether one is to be written once `step` is done. Updates are whole then (--accumulate).
  /// `is_asked`: by a signal.
  [[nodiscard]] bool is_due(std::uint64_t step, clock::time_point now, bool is_asked) const;

  using printer = std::function<void(const std::string& line)>;

  /// Begins one of the model as it is, `steps` being done, unless it has been written: reads the
  /// parts into files, while no step is under way, and leaves checksums, syncing and the removal of
  /// old ones to another thread. One is under way at most, so one before is waited for. `is_asked`:
  /// by a signal, which is answered with the place. That it cannot be written is printed, here or
  /// by `report`, and no error. Errors: those of reading the parts.
  [[nodiscard]] result<void> write(std::uint64_t steps, bool is_asked, const saved_parts& parts,
                                   const printer& print);

  /// Prints what became of the one under way, if that is known.
  void report(const printer& print);

  /// The steps in the last one that is whole, or in what the run began with; waits for the one
  /// under way.
  [[nodiscard]] std::uint64_t last_step(const printer& print);

  /// Errors: bad_data, io_failed.
  [[nodiscard]] result<whole_checkpoint> of_step(std::uint64_t step) const {
    return folder_.of_step(step);
  }

  /// Writes one at the end of a run, or where it was interrupted, and waits for it.
  [[nodiscard]] result<void> write_last(std::uint64_t steps, const saved_parts& parts,
                                        const printer& print);

 private:
  checkpoint_keeper(const trainer_config& config,
                    const std::map<std::string, double>& model_options, std::uint64_t steps,
                    clock::time_point now);

  /// What another thread makes a checkpoint of.
  struct under_way {
    std::uint64_t step = 0;
    bool is_asked = false;
    std::future<result<void>> done;  // the error of writing; a future of std::async waits for it
  };
  void wait(const printer& print);
  void warn(std::uint64_t step, const error& why, const printer& print) const;

  const trainer_config* config_;
  std::map<std::string, std::string> settings_;
  checkpoint_folder folder_;
  descriptor taken_;  // nobody else writes there
  checkpoint_period period_;
  std::uint64_t last_step_;
  clock::time_point last_time_;
  std::optional<under_way> under_way_;
};

}  // namespace troupe::cluster
