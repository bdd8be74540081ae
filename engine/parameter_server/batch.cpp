#include "engine/parameter_server/batch.hpp"

#include <ATen/ops/empty.h>

#include <cstring>
#include <utility>

namespace troupe::engine {
namespace {

/// Elements of `of`, which is in one piece, from `begin` on. Cheaper than a view by operators, and
/// apart from autograd.
at::Tensor part_of(const at::Tensor& of, std::int64_t begin, at::IntArrayRef shape) {
  auto part = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(of.storage()), of.key_set(), of.dtype());
  part.unsafeGetTensorImpl()->set_storage_offset(of.storage_offset() + begin);
  part.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return part;
}

}  // namespace

error no_such_parameter(std::uint32_t index, std::size_t known) {
  return {errc::bad_data, "there is no parameter " + std::to_string(index) +
                              " here; this shard has " + std::to_string(known)};
}

result<void> check_packed(const tensor_batch& batch,
                          const std::vector<parameter_entry>& directory) {
  std::int64_t wanted = 0;
  for (const auto index : batch.packed) {
    if (index >= directory.size())
      return tl::unexpected(no_such_parameter(index, directory.size()));
    wanted += c10::multiply_integers(directory[index].shape);
  }
  const auto& values = batch.values;
  if (!values.defined() && batch.packed.empty()) return {};
  if (values.defined() && values.dim() == 1 && values.numel() == wanted && values.is_contiguous())
    return {};
  return fail(errc::bad_data, "the packed values are " +
                                  std::to_string(values.defined() ? values.numel() : 0) +
                                  ", and their parameters have another number of elements");
}

void batch_builder::add(std::uint32_t parameter, at::Tensor rows, at::Tensor values) {
  if (!rows.defined() && values.numel() <= largest_packed && values.scalar_type() == dtype_) {
    batch_.packed.push_back(parameter);
    elements_ += values.numel();
    small_.push_back(std::move(values));
  } else {
    batch_.entries.push_back({parameter, std::move(rows), values.detach()});
  }
}

tensor_batch batch_builder::take() {
  if (small_.empty()) return std::exchange(batch_, {});
  batch_.values = at::empty({std::exchange(elements_, 0)}, dtype_);
  auto* to = static_cast<std::byte*>(batch_.values.mutable_data_ptr());
  for (const auto& each : std::exchange(small_, {})) {
    const auto from = (each.is_neg() ? each.resolve_neg() : each).contiguous();
    std::memcpy(to, from.const_data_ptr(), from.nbytes());
    to += from.nbytes();
  }
  return std::exchange(batch_, {});
}

result<std::vector<tensor_batch::entry>> unpack(const tensor_batch& batch,
                                                const std::vector<parameter_entry>& directory) {
  if (auto good = check_packed(batch, directory); !good) return tl::unexpected(good.error());
  std::vector<tensor_batch::entry> all;
  all.reserve(batch.packed.size() + batch.entries.size());
  std::int64_t begin = 0;
  for (const auto index : batch.packed) {
    const auto& shape = directory[index].shape;
    all.push_back({index, {}, part_of(batch.values, begin, shape)});
    begin += c10::multiply_integers(shape);
  }
  for (const auto& each : batch.entries) {
    if (each.parameter >= directory.size())
      return tl::unexpected(no_such_parameter(each.parameter, directory.size()));
    all.push_back(each);
  }
  return all;
}

}  // namespace troupe::engine
