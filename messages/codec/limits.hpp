#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::messages {

/// Upper bounds of a frame. Senders refuse to send more; receivers close the link of a peer that
/// does. Errors name the limit that was exceeded.
struct limits {
  std::size_t header_bytes = std::size_t{1} << 20;  ///< The encoded header, without tensor bytes.
  std::uint32_t tensors = 4096;                     ///< Tensors of one frame.
  std::uint32_t rank = 16;                          ///< Dimensions of one tensor.
  std::uint64_t tensor_bytes = std::uint64_t{4} << 30;  ///< Of all tensors of one frame together.
  std::uint32_t elements = 1024;                        ///< Elements of one frame's body.
  std::uint32_t values = 65536;                         ///< Fields and list items of one frame.
  std::uint32_t depth = 8;                              ///< Lists within lists within fields.
  std::size_t text_bytes = std::size_t{1} << 20;        ///< One string.
  /// Whether tensors may be in a device's memory; for a link that moves such memory itself.
  bool device_memory = false;
  /// Bytes of a peer's frames, without large tensors, that arrived before their tensors or out of
  /// order. An honest peer sends so many only while the last chunks of a large tensor are on their
  /// way.
  std::uint64_t held_bytes = std::uint64_t{256} << 20;
};

}  // namespace troupe::messages
