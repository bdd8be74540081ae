#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "messages/codec/codec.hpp"

namespace troupe::messages {

// The short header stands in place of Cap'n Proto's for a frame without tensors whose body is one
// element of numbers, as most requests, answers and credits are. It has about a third of the bytes,
// all of which are sealed and copied at both ends, and takes less time to write and to read. In
// little-endian order:
//
//   u8: 3 | u8 kind | u8 lane | u8 fields | u16 version | u8 bytes of the type | u8: 0 |
//   u64 sender | u64 target | u64 request id | u64 deadline in us |
//   the type | for each field u8: 0 none, 1 integer, 2 real | zeros up to a whole word |
//   for each field u64: the i64, the f64, or 0
//
// Cap'n Proto's header begins with a pointer to a struct, whose two lowest bits are 0: the first
// byte says which of the two it is.

/// The short header of a frame; nullopt for a frame that has none, or exceeds a limit.
[[nodiscard]] std::optional<encoded_header> encode_short(const frame& message,
                                                         const limits& bounds);

/// Whether a header says that it is a short one.
[[nodiscard]] bool is_short(std::span<const std::byte> header) noexcept;

/// Decodes a short header from anybody, at any address, whose size `decode` has checked. Each other
/// limit is checked before memory is allocated for what it bounds. Errors: bad_frame,
/// version_mismatch.
[[nodiscard]] result<frame> decode_short(std::span<const std::byte> header, const limits& bounds);

}  // namespace troupe::messages
