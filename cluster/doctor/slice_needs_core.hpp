#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::cluster::doctor {

/// What a folder is for that keeps slices of checkpoints on a host's own disk.
inline constexpr const char* slices_purpose =
    "its slices of checkpoints and those of the node before it (checkpoint.storage)";

/// Bytes of a checkpoint's files, by stage.
struct slice_sizes {
  std::vector<std::uint64_t> weights;
  /// Of the optimizer's state: the share of each replica that it is shared out to, or one for all.
  std::vector<std::vector<std::uint64_t>> state;

  bool operator==(const slice_sizes&) const = default;
};

/// What each node writes of one checkpoint: the files of its stages. `places`: the node of each
/// stage, replica by replica. Only the first replica writes, but for shares of the optimizer's
/// state.
[[nodiscard]] std::vector<std::uint64_t> own_slice_bytes_of_nodes(
    const std::vector<std::size_t>& places, const slice_sizes& sizes, std::size_t nodes);

/// What each node keeps of one checkpoint on its own disk: those files, and copies of those of the
/// node before it.
[[nodiscard]] std::vector<std::uint64_t> slice_bytes_of_nodes(
    const std::vector<std::size_t>& places, const slice_sizes& sizes, std::size_t nodes);

}  // namespace troupe::cluster::doctor
