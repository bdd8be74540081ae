#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/collective/nccl/abi.hpp"

namespace troupe::tests::fake_nccl {

/// A bfloat16 by its bits, computed with in float.
struct bfloat16 {
  std::uint16_t bits;

  explicit bfloat16(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    bits = static_cast<std::uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

inline bool can_reduce(engine::nccl::data_type type) {
  return type != engine::nccl::data_type::float16;
}

template <class Element, class Sum>
void reduce_as(engine::nccl::reduction by, const std::vector<const std::byte*>& parts,
               std::byte* to, std::size_t count) {
  using engine::nccl::reduction;
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = [&](std::size_t rank) {
      Element one{0};
      std::memcpy(&one, parts[rank] + i * sizeof(Element), sizeof(Element));
      return static_cast<Sum>(one);
    };
    Sum all = value(0);
    for (std::size_t rank = 1; rank < parts.size(); ++rank) {
      const Sum next = value(rank);
      if (by == reduction::product) all = static_cast<Sum>(all * next);
      if (by == reduction::maximum) all = all < next ? next : all;
      if (by == reduction::minimum) all = next < all ? next : all;
      if (by == reduction::sum || by == reduction::average) all = static_cast<Sum>(all + next);
    }
    if (by == reduction::average) all = static_cast<Sum>(all / static_cast<Sum>(parts.size()));
    const auto out = static_cast<Element>(all);
    std::memcpy(to + i * sizeof(Element), &out, sizeof(Element));
  }
}

/// Reduces in the order of the ranks.
inline void reduce(engine::nccl::data_type type, engine::nccl::reduction by,
                   const std::vector<const std::byte*>& parts, std::byte* to, std::size_t count) {
  using engine::nccl::data_type;
  switch (type) {
    case data_type::int8:
      return reduce_as<std::int8_t, std::int8_t>(by, parts, to, count);
    case data_type::uint8:
      return reduce_as<std::uint8_t, std::uint8_t>(by, parts, to, count);
    case data_type::int32:
      return reduce_as<std::int32_t, std::int32_t>(by, parts, to, count);
    case data_type::uint32:
      return reduce_as<std::uint32_t, std::uint32_t>(by, parts, to, count);
    case data_type::int64:
      return reduce_as<std::int64_t, std::int64_t>(by, parts, to, count);
    case data_type::uint64:
      return reduce_as<std::uint64_t, std::uint64_t>(by, parts, to, count);
    case data_type::float32:
      return reduce_as<float, float>(by, parts, to, count);
    case data_type::float64:
      return reduce_as<double, double>(by, parts, to, count);
    case data_type::bfloat16:
      return reduce_as<bfloat16, float>(by, parts, to, count);
    case data_type::float16:
      return;
  }
}

}  // namespace troupe::tests::fake_nccl
