#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a checkpoint says of itself, in its manifest.json.
struct checkpoint_manifest {
  struct file {
    std::uint64_t bytes = 0;
    std::string checksum;  ///< BLAKE2b, 256 bits, hexadecimal.
    /// Of each tensor's elements in row-major order: BLAKE2b, 128 bits. Empty: an older Troupe
    /// wrote the manifest, and only the checksum of the whole file is known.
    std::map<std::string, std::string> tensors = {};
    bool operator==(const file&) const = default;
  };
  std::uint64_t step = 0;  ///< Training steps that are in it.
  /// Settings without which the steps that follow would be others: a name and a value.
  std::map<std::string, std::string> settings;
  std::map<std::string, file> files;

  bool operator==(const checkpoint_manifest&) const = default;
};

inline constexpr std::string_view checkpoint_weights_name = "weights.safetensors";

/// The text of a manifest.json.
[[nodiscard]] std::string to_text(const checkpoint_manifest& manifest);

/// The opposite. Tables and members that it does not know are passed over; only an older Troupe
/// wrote no checksum of the manifest itself. Errors: bad_data, also for a newer format, as what
/// follows the file's name in a sentence.
[[nodiscard]] result<checkpoint_manifest> parse_manifest(std::string_view text);

/// Errors: bad_data naming the file.
[[nodiscard]] result<checkpoint_manifest> read_manifest(const std::filesystem::path& file);

}  // namespace troupe::cluster
