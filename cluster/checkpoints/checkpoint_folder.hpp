#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cluster/checkpoints/checkpoint_manifest.hpp"
#include "cluster/recovery/checkpoint_write_core.hpp"
#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {

/// A checkpoint that was found whole.
struct whole_checkpoint {
  std::filesystem::path folder;
  checkpoint_manifest manifest;

  /// Whether a run has told the evaluation of these weights.
  [[nodiscard]] bool is_evaluated() const;
};

/// The checkpoints of a run: FOLDER/step-000040/ with a file of weights and one of state a stage,
/// and manifest.json. A checkpoint is written in a folder of another name, its files by whoever has
/// the tensors and synced, its manifest last; the folder then gets its own name in one step, so
/// that whoever finds it finds it whole. What was left half written is removed by the next. One run
/// writes there at a time. May be used by two threads, provided that one checkpoint is finished or
/// dropped before the next one is begun.
class checkpoint_folder {
 public:
  static constexpr const char* manifest_name = checkpoint_manifest_name;
  static constexpr const char* evaluated_name = "evaluated";  ///< An empty file.

  explicit checkpoint_folder(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Makes the folder where there is none, writes some bytes there and takes them away, and removes
  /// half-written checkpoints. What is there is synced: a run may have ended before that. No
  /// other process can do so while the descriptor lives that it gives. Errors: io_failed with the
  /// system's reason, or where another process has the folder.
  [[nodiscard]] result<descriptor> prepare() const;

  /// Room that is left on its disk; none: the system does not say.
  [[nodiscard]] std::optional<std::uint64_t> free_bytes() const;

  /// One that is being written, under a name that nobody else has used: a process that finds this
  /// folder sees the same disk.
  struct begun {
    std::filesystem::path folder;
    std::uint64_t step = 0;
    bool is_evaluated = false;  ///< It gets that note at once, see `note_evaluated`.
    std::vector<std::filesystem::path> old = {};  ///< Others that it makes superfluous.
  };
  /// Makes the folder for the files, and removes others that are half written. Errors: io_failed.
  [[nodiscard]] result<begun> begin(std::uint64_t step) const;
  /// Makes a checkpoint of it, whose files are there and synced, and returns its folder; one of the
  /// same step is replaced. May be called in another thread. Errors: io_failed, also where a
  /// file is not there or has another length than the manifest says; then nothing of the checkpoint
  /// is left.
  [[nodiscard]] result<std::filesystem::path> finish(begun what,
                                                     const checkpoint_manifest& manifest) const;
  /// Does what the order asks for in this folder. Of the steps up to that of `what` the newest
  /// `keep` stay. Later ones are of a run that went further before this one began from an older
  /// checkpoint; they stay too. What is dropped is removed as far as nobody writes there any more;
  /// the rest goes with the next `begin`. May be called in another thread. Errors: io_failed,
  /// bad_data.
  [[nodiscard]] result<void> perform(checkpoint_write_core::effect next, begun& what,
                                     const checkpoint_manifest& manifest, std::size_t keep) const;
  /// Removes it, as far as nobody writes there any more.
  static void drop(const begun& what);

  /// The folders of those whose files hosts keep on disks of their own. Errors: bad_data for a
  /// manifest that cannot be read.
  [[nodiscard]] result<std::vector<std::string>> slices() const;
  /// What the folder of its files is called there: as new a name as its own.
  [[nodiscard]] std::string slices_of(const begun& what) const;
  /// A word for this folder by its path, which the names of such folders have in them.
  [[nodiscard]] std::string owner() const;

  /// Steps of the checkpoints that are there, whole or not; the newest first. None where the folder
  /// does not exist. Errors: bad_data where it cannot be read.
  [[nodiscard]] result<std::vector<std::uint64_t>> steps() const;

  /// What looks like a checkpoint.
  struct entry {
    std::filesystem::path folder;
    std::uint64_t step = 0;
    bool half_written = false;  ///< Under another name: being written, or left so.
  };
  /// Everything of that kind, by steps. Errors: as `steps`, and bad_data where there is no folder.
  [[nodiscard]] result<std::vector<entry>> entries() const;

  /// The newest; none: there is no checkpoint. Errors: bad_data naming the file that is torn or
  /// altered, and the newest whole checkpoint before it.
  [[nodiscard]] result<std::optional<whole_checkpoint>> latest() const;
  /// The newest that is whole, for a run that nobody watches: what is torn is passed over.
  struct newest_whole {
    std::optional<whole_checkpoint> found;
    std::vector<std::string> passed_over;  ///< What is wrong with newer ones, a sentence each.
    std::string of_another_troupe;         ///< The first of these that is no fault; empty: none is.
  };
  /// Of the steps before `before`. Errors: as `steps`.
  [[nodiscard]] result<newest_whole> newest(
      std::uint64_t before = std::numeric_limits<std::uint64_t>::max()) const;
  /// Errors: those of read_whole; bad_data where there is none of that step.
  [[nodiscard]] result<whole_checkpoint> of_step(std::uint64_t step) const;

  [[nodiscard]] std::filesystem::path path_of(std::uint64_t step) const;

  /// Notes in a checkpoint, if it is there, that its weights were evaluated, and the result told.
  /// Errors: io_failed.
  [[nodiscard]] result<void> note_evaluated(std::uint64_t step) const;

 private:
  /// So that what can be seen now can be seen after a loss of power too. Errors: io_failed,
  /// bad_data.
  [[nodiscard]] result<void> sync_all() const;
  /// The folders of those that do not stay, see `perform`.
  [[nodiscard]] result<std::vector<std::filesystem::path>> old(std::uint64_t newest,
                                                               std::size_t keep) const;

  std::filesystem::path folder_;
};

/// How an error goes on about a checkpoint that cannot be read: which older one is whole.
[[nodiscard]] std::string words_on_older(const std::optional<whole_checkpoint>& older);

/// The checkpoints that a path means: itself where it is a checkpoint's folder, or else those that
/// are in it, by steps. Never none. Errors: bad_data where it cannot be read, or holds none.
[[nodiscard]] result<std::vector<std::filesystem::path>> checkpoints_at(
    const std::filesystem::path& path);

/// Reads a checkpoint's manifest and compares every file with it, but for those that hosts keep on
/// disks of their own: only the hosts can tell. Errors: bad_data naming the file,
/// and the tensor where the manifest has its checksum: it is missing, shorter or longer, or has
/// other bytes; bad_config where a newer Troupe has written it.
[[nodiscard]] result<whole_checkpoint> read_whole(const std::filesystem::path& folder);

}  // namespace troupe::cluster
