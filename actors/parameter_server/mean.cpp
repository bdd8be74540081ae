#include "actors/parameter_server/mean.hpp"

#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace troupe::actors {
namespace {

constexpr std::int64_t block = 2048;  // elements: stays in the first cache

template <class T, class From>
void add_block(T* sum, const From* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += static_cast<T>(from[i]);
}

template <class T, class From>
void set_block(T* sum, const From* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] = static_cast<T>(from[i]);
}

template <class T>
void mean_into(at::Tensor& out, const std::vector<at::Tensor>& from, std::size_t count) {
  T* const to = out.mutable_data_ptr<T>();
  const auto divisor = static_cast<T>(count);
  for (std::int64_t begin = 0; begin < out.numel(); begin += block) {
    const auto length = std::min(block, out.numel() - begin);
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto use = [&](const auto* values) {
        i == 0 ? set_block(to + begin, values + begin, length)
               : add_block(to + begin, values + begin, length);
      };
      if (from[i].scalar_type() == at::kBFloat16)
        use(from[i].const_data_ptr<c10::BFloat16>());
      else
        use(from[i].const_data_ptr<T>());
    }
    for (std::int64_t i = begin; i < begin + length; ++i) to[i] /= divisor;
  }
}

}  // namespace

at::Tensor mean_of(std::span<const at::Tensor> tensors, std::size_t count, at::ScalarType dtype) {
  const auto& first = tensors.front();
  if (tensors.size() == 1 && count == 1) return first.to(dtype);
  auto out = at::empty(first.sizes(), first.options().dtype(dtype));
  std::vector<at::Tensor> from;
  from.reserve(tensors.size());
  for (const auto& each : tensors) {
    const bool plain = each.scalar_type() == dtype || each.scalar_type() == at::kBFloat16;
    from.push_back((plain ? each : each.to(dtype)).contiguous());
  }
  if (dtype == at::kFloat) {
    mean_into<float>(out, from, count);
  } else if (dtype == at::kDouble) {
    mean_into<double>(out, from, count);
  } else {
    out.copy_(from.front());
    for (std::size_t i = 1; i < from.size(); ++i) out.add_(from[i]);
    out.div_(static_cast<double>(count));
  }
  return out;
}

}  // namespace troupe::actors
