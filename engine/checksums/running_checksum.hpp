#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <variant>

#include "engine/checksums/checksum_kind.hpp"
#include "engine/checksums/file_digest.hpp"

struct XXH3_state_s;

namespace troupe::engine {

/// The checksum of bytes that are added piece by piece. Used by one thread.
class running_checksum {
 public:
  /// `blake2b_bytes`: of a BLAKE2b, 16 to 64. XXH3 always has 16.
  running_checksum(checksum_kind kind, std::size_t blake2b_bytes);

  void add(std::span<const std::byte> bytes);
  /// Hexadecimal, XXH3 as `xxhsum -H2` prints it. Nothing may be added afterwards.
  [[nodiscard]] std::string digits();

 private:
  struct xxh3_end {
    void operator()(XXH3_state_s* state) const noexcept;
  };
  using xxh3 = std::unique_ptr<XXH3_state_s, xxh3_end>;

  std::variant<xxh3, running_digest> of_;
};

}  // namespace troupe::engine
