#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cluster/checkpoints/checkpoint_manifest.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Something that is wrong with a checkpoint.
struct checkpoint_fault {
  std::filesystem::path file;
  std::string tensor;  ///< Empty: of the file as a whole.
  std::string what;    ///< Follows the file's name in a sentence, and names the tensor.

  [[nodiscard]] std::string text() const { return file.string() + ' ' + what; }
  bool operator==(const checkpoint_fault&) const = default;
};

/// How closely a checkpoint is looked at.
enum class check_depth : std::uint8_t {
  lengths,    ///< The files are there, with the bytes that the manifest says. Reads no tensor.
  checksums,  ///< And their bytes are those that were written.
  values,     ///< And no tensor holds NaN or infinity.
};

/// A folder that is named after another step than that of the checkpoint in it, as a copy that was
/// renamed is. A folder may have any name that is of no step.
[[nodiscard]] std::optional<checkpoint_fault> find_name_fault(const std::filesystem::path& folder,
                                                              const checkpoint_manifest& manifest);

/// What is wrong with the name of a checkpoint, and its files that are on this host, each altered
/// tensor by its name where the manifest has its checksum; empty: nothing. Files on other hosts
/// alone are passed over (see files_elsewhere). Reads what is not at fault once for `checksums` and
/// twice for `values`, and holds no tensor.
[[nodiscard]] std::vector<checkpoint_fault> find_faults(const std::filesystem::path& folder,
                                                        const checkpoint_manifest& manifest,
                                                        check_depth depth);

}  // namespace troupe::cluster
