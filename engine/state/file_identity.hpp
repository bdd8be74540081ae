#pragma once

#include <cstdint>

namespace troupe::engine {

/// What tells one safetensors file from others, also from later ones of its name, without reading
/// all of it: two processes that find it under one name see the same file, on one host or a shared
/// file system.
struct file_identity {
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;   ///< Since the epoch.
  std::uint64_t header_hash = 0;  ///< Of names, shapes and types.

  bool operator==(const file_identity&) const = default;

  /// Its members, for messages that carry it.
  static void fields(auto& self, auto& f) { f(self.bytes, self.modified_ns, self.header_hash); }
};

}  // namespace troupe::engine
