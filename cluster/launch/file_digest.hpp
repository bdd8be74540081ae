#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a file holds, in short.
struct file_digest {
  std::uint64_t bytes = 0;
  std::string digits;  ///< Of its BLAKE2b, hexadecimal.
};

/// `digest_bytes`: of the BLAKE2b, 16 to 64. Errors: io_failed with the system's reason alone.
[[nodiscard]] result<file_digest> digest_of_file(const std::filesystem::path& file,
                                                 std::size_t digest_bytes);

}  // namespace troupe::cluster
