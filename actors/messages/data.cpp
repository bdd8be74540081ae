#include "actors/messages/data.hpp"

#include <ATen/ops/empty.h>

#include <cstring>

namespace troupe::actors {

at::Tensor to_tensor(std::span<const std::int64_t> indices) {
  auto tensor = at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong);
  std::memcpy(tensor.mutable_data_ptr(), indices.data(), indices.size_bytes());
  return tensor;
}

std::vector<std::int64_t> to_list(const at::Tensor& indices) {
  if (!indices.defined()) return {};
  const auto row = indices.contiguous();
  const auto* const first = row.const_data_ptr<std::int64_t>();
  return {first, first + row.numel()};
}

}  // namespace troupe::actors
