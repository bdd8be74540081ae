#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "cluster/checkpoints/checkpoint_manifest.hpp"
#include "messages/base/error.hpp"

/// For the subcommands of `troupe checkpoint`.
namespace troupe::apps {

/// "999 B", "1.5 GB".
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);
/// "119 s", "2 min", "3 days"; of times in the future "0 s".
[[nodiscard]] std::string age_text(std::int64_t seconds);
/// "2026-01-31 23:59:59 UTC", of seconds since 1970.
[[nodiscard]] std::string time_text(std::int64_t seconds);

/// When a checkpoint was written, in seconds since 1970; 0: not known.
[[nodiscard]] std::int64_t written_at(const std::filesystem::path& folder);

/// The bytes of a checkpoint's files; of those that are on this host, where hosts keep them.
[[nodiscard]] std::uint64_t bytes_of(const cluster::checkpoint_manifest& manifest);
[[nodiscard]] std::uint64_t bytes_here(const std::filesystem::path& folder,
                                       const cluster::checkpoint_manifest& manifest);

/// The manifest's file.
[[nodiscard]] std::filesystem::path manifest_of(const std::filesystem::path& checkpoint);

/// The checkpoint that a path means; of several the newest. Errors: bad_data.
[[nodiscard]] result<std::filesystem::path> newest_at(const std::filesystem::path& where);

}  // namespace troupe::apps
