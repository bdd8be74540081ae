#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "cluster/config/trainer_config.hpp"
#include "cluster/recovery/checkpoint_record_core.hpp"
#include "cluster/training/saving/data_record.hpp"
#include "cluster/training/saving/slice_disks.hpp"
#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {

/// Settings that decide, with a checkpoint, what the steps after it are to the bit, and that a run
/// may not change therefore: which samples come when, what is drawn, and the model with its own
/// options. `model_options`: one whose name has a table before it ("server.workers") is of that.
[[nodiscard]] std::map<std::string, std::string> settings_of_steps(
    const trainer_config& config, const std::map<std::string, double>& model_options);

/// Errors: bad_config naming a setting that is another one than the checkpoint's, or saying that
/// the data are.
[[nodiscard]] result<void> check_settings(const whole_checkpoint& of, const trainer_config& config,
                                          const std::map<std::string, double>& model_options,
                                          const data_record& data = {});

/// The checkpoint that the run is to go on from; none: --resume names none, or "latest" where there
/// is none yet, or "auto" where none is whole. Warns of what is passed over. Errors: bad_data, and
/// those of check_settings.
[[nodiscard]] result<std::optional<whole_checkpoint>> find_resumed(
    const trainer_config& config, const std::map<std::string, double>& model_options,
    const data_record& data = {});

/// What checkpoints are made of.
struct checkpoint_parts {
  /// Has the stages write what they are after a step, which is the last that was begun.
  std::function<actors::slices_under_way(std::uint64_t step, const std::string& folder)> write;
  std::vector<std::string> weights;  ///< The model's parameters and buffers, in its order.
  actors::requester& ask;            ///< For what stages could not write; outlives the keeper.
  /// The same as `write`, each stage into a folder on its host's own disk.
  std::function<actors::slices_under_way(std::uint64_t step,
                                         const std::vector<std::string>& folders)>
      write_apart = {};
  /// Where that is; null: all files are in the trainer's folder.
  const slice_disks* disks = nullptr;
  /// Whose samples that could not be read are noted; null: none are.
  std::shared_ptr<const engine::dataset> data = {};
};

/// Has a run's checkpoints written when they are due. Does nothing where [checkpoint] names no
/// folder. Used by one thread; its destructor waits for what is under way.
class checkpoint_keeper {
 public:
  using clock = std::chrono::steady_clock;

  /// Whether checkpoints can be written into the folder that [checkpoint] names, if it names one:
  /// what `open` refuses later, before other hosts are asked for anything. Errors: as `open`.
  [[nodiscard]] static result<void> try_folder(const checkpoint_config& kept,
                                               const setting_places& places);

  /// `config` outlives it. `steps`: that are in what the run begins with. Errors: io_failed, where
  /// no checkpoint can be written, or another run has the folder.
  [[nodiscard]] static result<checkpoint_keeper> open(
      const trainer_config& config, const std::map<std::string, double>& model_options,
      std::uint64_t steps, clock::time_point now, const data_record& data = {});

  /// Whether [checkpoint] names a folder.
  [[nodiscard]] bool are_kept() const { return !config_->checkpoint.dir.empty(); }

  /// Warns where the disk has less room than one more checkpoint's weights need.
  void warn_of_little_room(std::uint64_t weight_bytes) const;

  /// Whether one is to be written of `step`, and has not been. Updates are whole then
  /// (--accumulate). `is_asked`: by a signal. After one that was cut off, because a stage was lost
  /// or the stages ended, another one is due at once.
  [[nodiscard]] bool is_due(std::uint64_t step, clock::time_point now, bool is_asked) const;

  using printer = std::function<void(const std::string& line)>;

  /// This step has been reported, and so have those before it. A checkpoint of a later one is not
  /// made whole before: a run that went on from it would never report its step.
  void told(std::uint64_t step);

  /// Begins one of a step, the last that was begun, unless it has been written: the stages write
  /// their files, and another thread waits for those and until the step is told, writes the
  /// manifest and removes old ones, so that further steps may begin at once. One is under way at
  /// most, so one before is waited for; its step has been told.
  /// `is_asked`: by a signal, which is answered with the place. That it cannot be written is
  /// printed, here or by `report`.
  void write(std::uint64_t step, bool is_asked, const checkpoint_parts& parts,
             const printer& print);

  /// Prints what became of the one under way, if that is known.
  void report(const printer& print);

  /// The steps in the last one that is whole, or in what the run began with. Waits for the one
  /// under way, of a run whose steps may never end: so long, and then gives it up. One whose step
  /// was not told is given up at once.
  [[nodiscard]] std::uint64_t last_step(std::chrono::seconds patience, const printer& print);

  /// The same, as far as is known; does not wait.
  [[nodiscard]] std::uint64_t last_step() const { return record_.last_step(); }

  /// The steps of checkpoints that this run has written and not removed; the newest first.
  [[nodiscard]] std::vector<std::uint64_t> own_steps() const;
  /// The run goes on behind this step, for later ones could not be read: they are written again.
  void went_back(std::uint64_t step);

  /// The evaluation after this step was told: a run that goes on from a checkpoint of that step
  /// need not repeat it, be it there or still to be written.
  void evaluated(std::uint64_t step);

  /// Errors: bad_data, io_failed.
  [[nodiscard]] result<whole_checkpoint> of_step(std::uint64_t step) const {
    return folder_.of_step(step);
  }

  /// Writes one at the end of a run, or where it was interrupted, and waits for it. That it cannot
  /// be written is printed, and no error. Errors: those of the stages, as peer_lost.
  [[nodiscard]] result<void> write_last(std::uint64_t steps, const checkpoint_parts& parts,
                                        const printer& print);

 private:
  checkpoint_keeper(const trainer_config& config,
                    const std::map<std::string, double>& model_options, std::uint64_t steps,
                    clock::time_point now, const data_record& data);

  /// What another thread makes a checkpoint of.
  struct under_way {
    actors::slices_under_way slices = {};
    std::future<result<void>> done = {};  // the error; a future of std::async waits for it
    actors::promise<void> told = {};      // that the step is; before `done`, which waits for it
  };
  /// One whose step was not told is given up: nobody would tell it meanwhile. Errors: why there is
  /// none.
  result<void> wait(const printer& print);
  /// Has the stages write their files. Errors: io_failed.
  [[nodiscard]] result<actors::slices_under_way> ask_stages(const checkpoint_folder::begun& files,
                                                            const checkpoint_parts& parts) const;
  void warn(std::uint64_t step, const error& why, const printer& print) const;
  void note_failure(const error& why, const printer& print);

  const trainer_config* config_;
  std::map<std::string, std::string> settings_;
  checkpoint_folder folder_;
  descriptor taken_;  // nobody else writes there
  checkpoint_period period_;
  checkpoint_record_core record_;
  clock::time_point last_time_;
  std::optional<under_way> under_way_;  // as in record_
};

}  // namespace troupe::cluster
