#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/slices/summed_file.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a checkpoint says of itself, in its manifest.json.
struct checkpoint_manifest {
  enum class contents : std::uint8_t { weights, state };
  struct file {
    contents holds = contents::weights;
    engine::file_sums sums = {};
    /// BLAKE2b of the whole file, 256 bits, hexadecimal: what manifests of format 1 have in place
    /// of `sums.header`. Their `sums.tensors` may be empty: then it is all that is known.
    std::string whole = {};
    std::vector<std::string> hosts = {};  ///< That keep it; empty: it is beside the manifest.
    bool operator==(const file&) const = default;
  };
  /// What a dynamic loss scale was (see engine::loss_scaler).
  struct loss_scale {
    double scale = 1;
    std::uint32_t applied = 0;
    bool operator==(const loss_scale&) const = default;
  };

  /// Samples that had been left out, since they could not be read: their indices in each split.
  struct unread_samples {
    std::vector<std::int64_t> train = {}, test = {};
    bool operator==(const unread_samples&) const = default;
  };

  std::uint64_t step = 0;  ///< Training steps that are in it.
  /// Settings on which the steps that follow depend: a name and a value.
  std::map<std::string, std::string> settings;
  std::map<std::string, file> files;
  /// The model's parameters and buffers, in its order. Empty in format 1, whose one file of weights
  /// has them in that order.
  std::vector<std::string> weights = {};
  std::optional<loss_scale> scaler = {};  ///< Format 1 has it in the file of state.
  /// The folder of its files where hosts keep slices (see slices_folder); empty: they are beside
  /// the manifest.
  std::string slices = {};
  unread_samples left_out = {};
  /// All settings of its run that were not the defaults, for who looks at it: a name and a value.
  std::map<std::string, std::string> config = {};

  /// Whether it is of format 1: one file of weights, and one of state beside it.
  [[nodiscard]] bool is_of_two_files() const { return weights.empty(); }
  /// Whether hosts keep its files on disks of their own.
  [[nodiscard]] bool is_on_hosts() const { return !slices.empty(); }
  [[nodiscard]] std::vector<std::string> names_of(contents which) const;

  bool operator==(const checkpoint_manifest&) const = default;
};

inline constexpr const char* checkpoint_manifest_name = "manifest.json";

/// The file of weights of format 1.
inline constexpr std::string_view checkpoint_weights_name = "weights.safetensors";

/// The text of a manifest.json. With checksums of older versions it has their format.
[[nodiscard]] std::string to_text(const checkpoint_manifest& manifest);

/// The opposite. Tables and members that it does not know are passed over where the manifest's own
/// checksum has them; only manifests of format 1 may have none. Errors: bad_config for a newer
/// format; bad_data, also for a key that stands twice in a table, for weights that stand in no file
/// or in two; as what follows the file's name in a sentence.
[[nodiscard]] result<checkpoint_manifest> parse_manifest(std::string_view text);

/// Errors: the same, naming the file.
[[nodiscard]] result<checkpoint_manifest> read_manifest(const std::filesystem::path& file);

}  // namespace troupe::cluster
