#pragma once

#include <cstdint>

namespace troupe::engine {

/// The algorithm of a checkpoint's checksums, which find flipped bits, not forgeries.
enum class checksum_kind : std::uint8_t {
  xxh3,     ///< XXH3 of 128 bits: what is written.
  blake2b,  ///< What older versions wrote.
};

}  // namespace troupe::engine
