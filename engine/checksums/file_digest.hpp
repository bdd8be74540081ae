#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "messages/base/error.hpp"

namespace troupe::engine {

/// BLAKE2b of bytes that are added piece by piece. Used by one thread.
class running_digest {
 public:
  /// `digest_bytes`: 16 to 64.
  explicit running_digest(std::size_t digest_bytes);
  running_digest(running_digest&&) noexcept;
  running_digest& operator=(running_digest&&) noexcept;
  ~running_digest();

  void add(std::span<const std::byte> bytes);
  /// Hexadecimal. Nothing may be added afterwards.
  [[nodiscard]] std::string digits();

 private:
  struct state;
  std::unique_ptr<state> state_;
  std::size_t digest_bytes_;
};

/// The size and the digest of a file.
struct file_digest {
  std::uint64_t bytes = 0;
  std::string digits;  ///< Of its BLAKE2b, hexadecimal.
};

/// `digest_bytes`: of the BLAKE2b, 16 to 64. Errors: io_failed with the system's reason alone.
[[nodiscard]] result<file_digest> digest_of_file(const std::filesystem::path& file,
                                                 std::size_t digest_bytes);

}  // namespace troupe::engine
