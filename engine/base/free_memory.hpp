#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace troupe::engine {

/// What the system lets this process have beyond what it has now.
struct free_memory {
  std::uint64_t bytes = 0;       ///< Within the control group's limit and the machine's memory.
  std::uint64_t swap_bytes = 0;  ///< More on the machine's disk; 0 where a group's limit is less.
  std::uint64_t group_limit_bytes = 0;  ///< Of the control group that is `bytes`' limit; 0: none.

  bool operator==(const free_memory&) const = default;
};

/// Reads /proc and the control groups (versions 1 and 2). Linux only.
[[nodiscard]] free_memory read_free_memory();

/// The number that a file's first line begins with; nullopt: none, or there is no such file.
[[nodiscard]] std::optional<std::uint64_t> first_number(const std::filesystem::path& file);

/// The folders of this process's control group, from its own up to the root: of version 2, or of a
/// controller ("memory", "cpu") of version 1. A container may see its own as the root.
[[nodiscard]] std::vector<std::filesystem::path> control_groups(const std::string& controller);

}  // namespace troupe::engine
