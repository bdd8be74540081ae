#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "messages/base/error.hpp"

/// For the sources of checkpoint_folder alone.
namespace troupe::cluster {

inline constexpr std::string_view step_prefix = "step-";              ///< Of a checkpoint's name.
inline constexpr std::string_view half_written_prefix = ".writing-";  ///< Of one that is written.

/// The names of what a folder holds. Errors: bad_data.
[[nodiscard]] result<std::vector<std::string>> names_in(const std::filesystem::path& folder);

}  // namespace troupe::cluster
