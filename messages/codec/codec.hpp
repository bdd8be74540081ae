#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "messages/base/error.hpp"
#include "messages/codec/limits.hpp"
#include "messages/frame.hpp"

namespace troupe::messages {

/// The header of a frame as it travels, in whole words of 8 bytes: one Cap'n Proto segment, or the
/// short form of a frame of numbers (short_header.hpp).
using encoded_header = std::vector<std::byte>;

/// Encodes everything but the tensors' bytes. Checks the frame against `bounds` first, and that
/// each tensor has as many bytes as its descriptor says. Errors: bad_frame.
[[nodiscard]] result<encoded_header> encode(const frame& message, const limits& bounds = {});

/// Decodes a header from anybody. Each limit is checked before memory is allocated for what it
/// bounds. The tensors come back with `bytes.bytes` set and no data: the link brings that.
/// `header` must be aligned to 8 bytes unless it is a short one. Errors: bad_frame,
/// version_mismatch. Never throws anything but std::bad_alloc; safe from any thread.
[[nodiscard]] result<frame> decode(std::span<const std::byte> header, const limits& bounds = {});

/// The bytes of a tensor of that shape. Refuses negative sizes, products that overflow, more than
/// `bounds.rank` dimensions and strides that leave gaps or overlap. Errors: bad_frame.
[[nodiscard]] result<std::uint64_t> checked_bytes(const tensor_descriptor& tensor,
                                                  const limits& bounds = {});

}  // namespace troupe::messages
