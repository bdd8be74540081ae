#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "messages/codec/codec.hpp"

namespace troupe::messages {
namespace {

/// Whether the strides walk each element of the storage exactly once, in some order of dimensions.
/// Dimensions of size 1 are never stepped along, so their strides mean nothing.
bool is_dense(const tensor_descriptor& tensor) {
  std::vector<std::size_t> order;
  order.reserve(tensor.shape.size());
  for (std::size_t i = 0; i < tensor.shape.size(); ++i)
    if (tensor.shape[i] != 1) order.push_back(i);
  std::ranges::sort(order, {}, [&](std::size_t i) { return tensor.strides[i]; });
  std::int64_t expected = 1;
  for (const std::size_t i : order) {
    if (tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];  // cannot overflow: the product of all sizes was checked
  }
  return true;
}

}  // namespace

result<std::uint64_t> checked_bytes(const tensor_descriptor& tensor, const limits& bounds) {
  const std::uint64_t item = item_bytes(tensor.type);
  if (item == 0) return fail(errc::bad_frame, "a tensor has an unknown element type");
  if (tensor.shape.size() > bounds.rank)
    return fail(errc::bad_frame, fmt::format("a tensor has {} dimensions, limit rank is {}",
                                             tensor.shape.size(), bounds.rank));
  if (tensor.strides.size() != tensor.shape.size())
    return fail(errc::bad_frame, fmt::format("a tensor has {} dimensions but {} strides",
                                             tensor.shape.size(), tensor.strides.size()));
  // Sizes of 0 are left out of the product, so that huge sizes beside them are refused too.
  std::int64_t product = static_cast<std::int64_t>(item);
  bool empty = false;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    const std::int64_t size = tensor.shape[i];
    if (size < 0) return fail(errc::bad_frame, fmt::format("a tensor has a size of {}", size));
    if (tensor.strides[i] < 0)
      return fail(errc::bad_frame, fmt::format("a tensor has a stride of {}", tensor.strides[i]));
    empty = empty || size == 0;
    if (size > 0 && __builtin_mul_overflow(product, size, &product))
      return fail(errc::bad_frame, "a tensor's shape overflows its byte count");
  }
  if (empty) return 0;
  if (!is_dense(tensor))
    return fail(errc::bad_frame, "a tensor's strides leave gaps or overlap; make it dense first");
  return static_cast<std::uint64_t>(product);
}

}  // namespace troupe::messages
