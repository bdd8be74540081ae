#pragma once

#include <filesystem>
#include <string>

#include "messages/base/error.hpp"

namespace troupe::engine {

// What stands where an output is to go. Nothing here creates or changes anything; every function
// may be called from any thread.

/// The folder that a file of this name is in.
[[nodiscard]] inline std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

/// The file that an output under this name is: what its symbolic links lead to, or the name itself.
/// Links of strangers in a folder that everybody may write to are not followed. Errors: io_failed
/// naming the file.
[[nodiscard]] result<std::filesystem::path> behind_links(const std::filesystem::path& file);

/// Why a file cannot be replaced whole, or created, under this name; empty: it seems that it can.
/// Only a regular file is ever replaced.
[[nodiscard]] std::string why_not_replaceable(const std::filesystem::path& file);

/// Why no file can be made in a folder of this name, which is made itself where there is none;
/// empty: it seems that it can.
[[nodiscard]] std::string why_no_folder(const std::filesystem::path& folder);

/// Whether two names are one file, through links and whatever the spelling, also where it does not
/// exist yet.
[[nodiscard]] bool is_same_file(const std::filesystem::path& one,
                                const std::filesystem::path& other);

/// "a directory", "a device"; empty for a regular file and for nothing.
[[nodiscard]] std::string kind_of_special(const std::filesystem::path& file);

}  // namespace troupe::engine
