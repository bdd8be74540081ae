#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/checkpoints/checkpoint_manifest.hpp"

namespace troupe::cluster {

/// Beside the folders of checkpoints on each host: where it keeps the files of its stages, and of
/// the host before it, where checkpoints are on the hosts' own disks.
inline constexpr const char* slices_folder = "slices";

/// The step in a name like "step-000040"; none: it is of another form.
[[nodiscard]] std::optional<std::uint64_t> step_of_name(std::string_view name);

/// Where a file of a checkpoint is, in its folder or where this host keeps slices; nothing where it
/// is on other hosts alone.
[[nodiscard]] std::optional<std::filesystem::path> file_of(const std::filesystem::path& checkpoint,
                                                           const checkpoint_manifest& manifest,
                                                           const std::string& name);

/// The names of files that are on other hosts alone.
[[nodiscard]] std::vector<std::string> files_elsewhere(const std::filesystem::path& checkpoint,
                                                       const checkpoint_manifest& manifest);

}  // namespace troupe::cluster
