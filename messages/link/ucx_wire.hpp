#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace troupe::messages::ucx {

// How frames travel over UCX Active Messages. Each message has a small fixed header, in
// little-endian order, and data.
//
//   greeting  First each way on a new connection. No data.
//   frame     Data: the Cap'n Proto header, then the bytes of each tensor of at most `inline_max`
//             bytes, in the order of the tensors, without padding. Always eager.
//   chunk     Data: one piece of a larger tensor, at most `frame_prefix::chunk_bytes`. Sent with
//             the rendezvous protocol from tensor storage into a pooled buffer.
//   farewell  The last of a connection, each way. Data: the reason, text.
//
// Frames are numbered from 0 per lane. UCX may deliver any message before an earlier one, so the
// receiver holds early ones and releases whole frames in the order of their numbers. The sender
// hands UCX the control lane's messages first and keeps the bytes it has in flight bounded.
//
// A receiver closes the connection for: another message, a header of another size, a lane that does
// not exist, a number that was used or is too far ahead, a chunk that is not the next multiple,
// overlaps, repeats or belongs to no tensor, byte counts that do not add up, a frame beyond its
// limits.

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

inline constexpr std::uint32_t wire_magic = 0x50525254;  // "TRRP"
inline constexpr std::uint16_t wire_version = 1;

enum message_id : unsigned {
  greeting_id = 1,
  frame_id = 2,
  chunk_id = 3,
  farewell_id = 4,
  unknown_id = 65535,  ///< The highest that UCX can carry; all others are unknown too.
};

struct greeting {
  std::uint32_t magic = wire_magic;
  std::uint16_t wire = wire_version;
  std::uint16_t protocol = 0;  ///< messages::protocol_version
};
static_assert(sizeof(greeting) == 8);

struct frame_prefix {
  std::uint8_t lane = 0;
  std::uint8_t reserved[3] = {};
  std::uint32_t header_bytes = 0;  ///< Of the Cap'n Proto header.
  std::uint64_t sequence = 0;
  std::uint32_t inline_max = 0;    ///< Tensors of at most this size are in the data.
  std::uint32_t inline_bytes = 0;  ///< Of all those tensors.
  std::uint64_t chunk_bytes = 0;   ///< Of each chunk but a tensor's last.
};
static_assert(sizeof(frame_prefix) == 32);

struct chunk_prefix {
  std::uint8_t lane = 0;
  std::uint8_t reserved[3] = {};
  std::uint32_t tensor = 0;  ///< Index in the frame.
  std::uint64_t sequence = 0;
  std::uint64_t offset = 0;  ///< A multiple of `chunk_bytes`.
  std::uint64_t bytes = 0;
};
static_assert(sizeof(chunk_prefix) == 32);

struct farewell {
  std::uint8_t code = 0;    ///< errc of the reason.
  std::uint8_t answer = 0;  ///< 1: in answer to yours.
  std::uint8_t reserved[6] = {};
  std::uint64_t frames[2] = {};  ///< How many frames were sent on each lane.
};
static_assert(sizeof(farewell) == 24);

static_assert(std::is_trivially_copyable_v<frame_prefix> &&
              std::is_trivially_copyable_v<chunk_prefix> &&
              std::is_trivially_copyable_v<farewell> && std::is_trivially_copyable_v<greeting>);

/// The longest reason a farewell carries.
inline constexpr std::size_t farewell_text_bytes = 512;
/// No chunk but the last may be smaller, so that a tensor has a bounded number of them.
inline constexpr std::uint64_t least_chunk_bytes = 64 << 10;

}  // namespace troupe::messages::ucx
