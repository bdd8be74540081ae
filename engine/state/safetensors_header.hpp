#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::engine {

/// One tensor as a safetensors header describes it. Offsets count from the end of the header.
struct safetensors_entry {
  std::string name;
  at::ScalarType type = at::ScalarType::Float;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct safetensors_header {
  std::vector<safetensors_entry> tensors;  // in the header's order
  std::uint64_t data_begin = 0;            // bytes from the start of the file
};

/// The format's name of a type ("F32"); none where the format or this reader has no such type.
[[nodiscard]] std::optional<std::string_view> safetensors_type_name(at::ScalarType type);

/// Checks and reads the header of a whole file's bytes. What it returns is safe to follow: every
/// tensor lies within the file, has as many bytes as its shape and type need, and the tensors fill
/// the file without gap or overlap. Errors: bad_data, without the file's name.
[[nodiscard]] result<safetensors_header> parse_safetensors_header(std::span<const std::byte> bytes);

/// The same for a file of which only the front has been read, at least `front_bytes_of` of it.
[[nodiscard]] result<safetensors_header> parse_safetensors_header(std::span<const std::byte> front,
                                                                  std::uint64_t file_bytes);

/// How much of a file's front its header needs, as its first bytes say; never more than the limit
/// of a header, or than the file has. `first`: a few hundred bytes, or the whole file where it has
/// fewer.
[[nodiscard]] std::uint64_t front_bytes_of(std::span<const std::byte> first,
                                           std::uint64_t file_bytes);

/// The bytes that stand before the data: length and padded JSON. Throws nlohmann's exceptions on
/// text that is not UTF-8.
[[nodiscard]] std::string format_safetensors_header(const safetensors_header& header);

}  // namespace troupe::engine
