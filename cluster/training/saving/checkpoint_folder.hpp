#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/state/tensor_stream.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a checkpoint says of itself, in its manifest.json.
struct checkpoint_manifest {
  struct file {
    std::uint64_t bytes = 0;
    std::string checksum;  ///< BLAKE2b, 256 bits, hexadecimal.
    bool operator==(const file&) const = default;
  };
  std::uint64_t step = 0;  ///< Training steps that are in it.
  /// Settings without which the steps that follow would be others: a name and a value.
  std::map<std::string, std::string> settings;
  std::map<std::string, file> files;

  bool operator==(const checkpoint_manifest&) const = default;
};

/// A checkpoint that was found whole.
struct whole_checkpoint {
  std::filesystem::path folder;
  checkpoint_manifest manifest;
  [[nodiscard]] std::filesystem::path weights() const;
};

/// The checkpoints of a run: FOLDER/step-000040/{weights.safetensors, weights.state.safetensors,
/// manifest.json}. A checkpoint is written under another name and synced, its manifest last, and
/// then gets its own in one step, so that whoever finds it finds it whole; what a run that was
/// killed has left half written is removed by the next. One process writes there at a time. Used by
/// one thread.
class checkpoint_folder {
 public:
  static constexpr const char* manifest_name = "manifest.json";

  explicit checkpoint_folder(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Makes the folder where there is none, tries to write there, and removes half-written
  /// checkpoints. Errors: io_failed with the system's reason.
  [[nodiscard]] result<void> prepare() const;

  /// What is to be kept of a run.
  struct parts {
    const engine::tensor_stream& weights;
    /// The optimizers' state; asked for once the weights have been read.
    std::function<result<engine::tensor_stream>()> state;
  };
  /// Writes a checkpoint and returns its folder; one of the same step is replaced. Errors:
  /// io_failed, upon which nothing is left of it; those of reading the parts.
  [[nodiscard]] result<std::filesystem::path> write(
      std::uint64_t step, const std::map<std::string, std::string>& settings,
      const parts& what) const;

  /// Removes all but the newest `keep`. Errors: io_failed.
  [[nodiscard]] result<void> prune(std::size_t keep) const;

  /// Steps of the checkpoints that are there, whole or not; the newest first.
  [[nodiscard]] std::vector<std::uint64_t> steps() const;

  /// The newest; none: there is no checkpoint. Errors: bad_data naming the file that is torn or
  /// altered, and the newest whole checkpoint before it.
  [[nodiscard]] result<std::optional<whole_checkpoint>> latest() const;
  /// Errors: bad_data, also where there is none of that step.
  [[nodiscard]] result<whole_checkpoint> of_step(std::uint64_t step) const;

  [[nodiscard]] std::filesystem::path path_of(std::uint64_t step) const;

 private:
  std::filesystem::path folder_;
};

/// Reads a checkpoint's manifest and compares every file with it. Errors: bad_data naming the file:
/// it is missing, shorter or longer, or has other bytes, or a newer Troupe has written it.
[[nodiscard]] result<whole_checkpoint> read_whole(const std::filesystem::path& folder);

}  // namespace troupe::cluster
