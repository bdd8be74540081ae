#pragma once

#include <sodium.h>

#include <cstddef>
#include <span>

// Bytes as libsodium takes them.

namespace troupe::messages {

[[nodiscard]] inline const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

/// Whether both are the same bytes, in a time that does not depend on where they differ.
[[nodiscard]] inline bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace troupe::messages
