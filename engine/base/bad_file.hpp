#pragma once

#include <filesystem>
#include <string>

#include "messages/base/error.hpp"

namespace troupe::engine {

/// The error bad_data that names a file before what is wrong with it.
[[nodiscard]] inline tl::unexpected<error> bad_file(const std::filesystem::path& file,
                                                    const std::string& what) {
  return fail(errc::bad_data, file.string() + " " + what);
}

}  // namespace troupe::engine
