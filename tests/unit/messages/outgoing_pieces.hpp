#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "messages/link/frames/outbox.hpp"

namespace troupe::messages {

inline constexpr std::uint64_t chunk = wire::least_chunk_bytes;

/// A frame as it leaves a link whose bundles have 8 KiB.
inline std::shared_ptr<outgoing> pieces_of(frame message) {
  return cut(std::move(message), {}, 8192, chunk).value();
}

}  // namespace troupe::messages
