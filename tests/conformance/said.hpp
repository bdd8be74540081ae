#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "link_fixture.hpp"
#include "messages/codec/codec.hpp"
#include "messages/link/seal/format.hpp"

namespace troupe::messages::testing {

/// A frame's head, and what to seal it with, for a stranger to send.
struct head {
  explicit head(frame message) : data(encode(message).value()) {
    prefix.lane = static_cast<std::uint8_t>(lane::data);
    prefix.header_bytes = static_cast<std::uint32_t>(data.size());
    prefix.chunk_bytes = wire::least_chunk_bytes;
  }
  explicit head(std::int64_t number) : head(numbered(number)) {}

  encoded_header data;
  wire::frame_prefix prefix;
};

/// A bundle of frames with these numbers, the first of which is frame `sequence` of the data lane.
struct bundle_of {
  bundle_of(std::uint64_t sequence, const std::vector<std::int64_t>& numbers) {
    prefix.lane = static_cast<std::uint8_t>(lane::data);
    prefix.frames = static_cast<std::uint16_t>(numbers.size());
    prefix.sequence = sequence;
    for (const std::int64_t number : numbers) {
      const head one(number);
      const wire::bundle_entry entry{one.prefix.header_bytes, 0, 0};
      const auto entry_bytes = std::as_bytes(std::span(&entry, 1));
      data.insert(data.end(), entry_bytes.begin(), entry_bytes.end());
      data.insert(data.end(), one.data.begin(), one.data.end());
    }
  }

  wire::bundle_prefix prefix;
  std::vector<std::byte> data;
};

}  // namespace troupe::messages::testing
