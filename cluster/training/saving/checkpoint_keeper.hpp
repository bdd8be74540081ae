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
#include "cluster/config/config_tables.hpp"
#include "cluster/config/setting_places.hpp"
#include "cluster/recovery/checkpoint_record_core.hpp"
#include "cluster/training/saving/beginning.hpp"
#include "cluster/training/saving/slice_disks.hpp"
#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {

/// What checkpoints are made of.
struct checkpoint_parts {
  /// Has the stages write their state after a step, the last that was begun.
  std::function<actors::slices_under_way(std::uint64_t step, const std::string& folder)> write;
  std::vector<std::string> weights;  ///< The model's parameters and buffers, in its order.
  actors::requester& ask;            ///< For what stages could not write; outlives the keeper.
  /// The same, but each stage writes into a folder on its host's own disk.
  std::function<actors::slices_under_way(std::uint64_t step,
                                         const std::vector<std::string>& folders)>
      write_apart = {};
  /// Those disks; null: all files are in the trainer's folder.
  const slice_disks* disks = nullptr;
  /// Its unreadable samples are recorded in the manifest; null: none are.
  std::shared_ptr<const engine::dataset> data = {};
};

/// "run1 has 8 MiB left, and the weights alone of one checkpoint need 42 MiB"
[[nodiscard]] std::string words_on_little_room(const std::string& where, std::uint64_t free_bytes,
                                               std::uint64_t weight_bytes);

/// Has a run's checkpoints written when they are due. Does nothing where [checkpoint] names no
/// folder. Used by one thread; its destructor waits for what is under way.
class checkpoint_keeper {
 public:
  using clock = std::chrono::steady_clock;

  /// Whether checkpoints can be written into the folder that [checkpoint] names, if it names one.
  /// `open` checks the same, but only after other hosts were asked. Errors: as `open`.
  [[nodiscard]] static result<void> try_folder(const checkpoint_config& kept,
                                               const setting_places& places);

  /// The run's config outlives it. `steps`: the steps in what the run starts from. Errors:
  /// io_failed if no checkpoint can be written, or if another run uses the folder.
  [[nodiscard]] static result<checkpoint_keeper> open(const checkpointed_run& run,
                                                      std::uint64_t steps, clock::time_point now);

  /// Whether [checkpoint] names a folder.
  [[nodiscard]] bool are_kept() const { return !kept_->dir.empty(); }

  /// Warns where the disk has less room than one more checkpoint's weights need.
  void warn_of_little_room(std::uint64_t weight_bytes) const;

  /// Whether a checkpoint of `step` is to be written and has not been; only at steps that complete
  /// an update (--accumulate). `is_asked`: a signal asks for one. After a checkpoint that was cut
  /// off because a stage was lost or the stages ended, another one is due at once.
  [[nodiscard]] bool is_due(std::uint64_t step, clock::time_point now, bool is_asked) const;

  using printer = std::function<void(const std::string& line)>;

  /// This step and those before it have been reported. The manifest of a checkpoint is written only
  /// after its step was reported: a run that resumed from it would never report that step.
  void told(std::uint64_t step);

  /// Begins a checkpoint of a step, the last that was begun, unless there is one. The stages write
  /// their files, and further steps may begin at once: another thread waits for the files and for
  /// the report of the step, writes the manifest and removes old checkpoints. At most one is under
  /// way: this waits for the one before, whose step has been reported. `is_asked`: a signal asked
  /// for it, so its path is printed. A failure is printed, here or by `report`.
  void write(std::uint64_t step, bool is_asked, const checkpoint_parts& parts,
             const printer& print);

  /// Prints the outcome of the checkpoint under way, if it is known.
  void report(const printer& print);

  /// The step of the last whole checkpoint, or of what the run started from. Waits up to `patience`
  /// for the checkpoint under way and then abandons it, since the step that it waits for may never
  /// end. A checkpoint whose step was not reported is abandoned at once.
  [[nodiscard]] std::uint64_t last_step(std::chrono::seconds patience, const printer& print);

  /// The same as far as is known, without waiting.
  [[nodiscard]] std::uint64_t last_step() const { return record_.last_step(); }

  /// The steps of checkpoints that this run has written and not removed; the newest first.
  [[nodiscard]] std::vector<std::uint64_t> own_steps() const;
  /// The run continues after this step because later checkpoints could not be read; they are
  /// written again.
  void went_back(std::uint64_t step);
  /// The run begins after this step instead, and nothing of it has been written or reported yet.
  void begin_behind(std::uint64_t step);

  /// The evaluation after this step was reported, so a run that resumes from a checkpoint of this
  /// step, written already or not, need not repeat it.
  void evaluated(std::uint64_t step);

  /// Errors: bad_data, io_failed.
  [[nodiscard]] result<whole_checkpoint> of_step(std::uint64_t step) const {
    return folder_.of_step(step);
  }

  /// Writes a checkpoint at the end of a run, or where it was interrupted, and waits for it. If it
  /// cannot be written, that is printed and is no error. `steps`: of whole updates. Errors: those
  /// of the stages, as peer_lost.
  [[nodiscard]] result<void> write_last(std::uint64_t steps, const checkpoint_parts& parts,
                                        const printer& print);

 private:
  checkpoint_keeper(const checkpointed_run& run, std::uint64_t steps, clock::time_point now);

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
  /// In the last checkpoint, if it is of this step: the evaluation may have ended while it was
  /// written, or after that.
  void note_if_evaluated(std::uint64_t step) const;

  const checkpoint_config* kept_;
  const train_config* train_;
  const setting_places* places_;
  std::map<std::string, std::string> settings_;
  std::map<std::string, std::string> config_;
  checkpoint_folder folder_;
  descriptor taken_;  // nobody else writes there
  checkpoint_period period_;
  checkpoint_record_core record_;
  clock::time_point last_time_;
  std::optional<under_way> under_way_;  // as in record_
};

}  // namespace troupe::cluster
