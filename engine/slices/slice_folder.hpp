#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::engine {

/// Whether a name can be that of a file in a folder: no path, and not hidden.
[[nodiscard]] bool is_plain_name(const std::string& name);

/// The step in the name of a checkpoint's folder of slices; none: it is of another form.
[[nodiscard]] std::optional<std::uint64_t> step_of_slices(std::string_view name);

/// Sixteen hexadecimal digits that nobody else has drawn, and nobody can guess.
[[nodiscard]] std::string random_word();

/// Where a host keeps slices of checkpoints on a disk of its own: FOLDER/step-000040-OWNER-5d1e../
/// holds the files of one checkpoint, under a name that no other checkpoint has, so that nothing is
/// ever renamed; what no manifest names was never completed. The owner is a word for the trainer's
/// folder with the manifests: several may have slices here. Several processes of one run may have
/// the folder open, and of two runs one. Errors: io_failed naming the folder, bad_frame for a word
/// that is no plain name.
class slice_folder {
 public:
  /// Makes the folder where there is none. `run`: a word that tells this run from all others.
  /// Nothing: another run that has not ended has its slices there, or is just trying to open it.
  [[nodiscard]] static result<std::optional<slice_folder>> open(const std::filesystem::path& folder,
                                                                const std::string& run);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return folder_; }

  /// The same for all processes of the run that see this folder, and for nobody else.
  [[nodiscard]] const std::string& disk() const noexcept { return disk_; }

  [[nodiscard]] result<std::filesystem::path> file(const std::string& checkpoint,
                                                   const std::string& name) const;

  /// Keeps a checkpoint's manifest beside its files, for a trainer that has lost its own.
  [[nodiscard]] result<void> keep_manifest(const std::string& checkpoint,
                                           const std::string& text) const;
  /// An owner's manifests that are kept here, by checkpoint.
  [[nodiscard]] result<std::map<std::string, std::string>> manifests(
      const std::string& owner) const;

  /// Removes the checkpoints of an owner that are not among `kept`, but for those of later steps
  /// than `newest`: a run that goes on from an older checkpoint leaves them until it comes as far.
  [[nodiscard]] result<void> remove_others(const std::string& owner,
                                           const std::vector<std::string>& kept,
                                           std::uint64_t newest) const;

 private:
  slice_folder(std::filesystem::path folder, descriptor held, std::string disk)
      : folder_(std::move(folder)), held_(std::move(held)), disk_(std::move(disk)) {}

  std::filesystem::path folder_;
  descriptor held_;  // the lock of the run
  std::string disk_;
};

/// Makes a folder, and those above it, so that its name outlives a loss of power. A folder that
/// exists already is no error.
[[nodiscard]] result<void> make_synced_folder(const std::filesystem::path& folder);

}  // namespace troupe::engine
