#include "actors/transfer/row_major.hpp"

namespace troupe::actors {
namespace {

bool is_row_major(const storage_range& range) {
  std::int64_t due = 1;
  for (std::size_t i = range.shape.size(); i-- > 0;) {
    if (range.shape[i] != 1 && range.strides.at(i) != due) return false;
    due *= range.shape[i];
  }
  return true;
}

}  // namespace

result<void> row_major_runs::add(const tensor_part& part, const taker& take) {
  if (!part.tensor.defined())
    return fail(errc::bad_data, "tensor '" + part.name + "' has no values");
  if (!part.range) return take(part.name, 0, part.tensor.contiguous());
  if (part.range->shape.size() != part.range->strides.size())
    return fail(errc::bad_data, "tensor '" + part.name + "' has sizes without strides");
  if (is_row_major(*part.range)) return take(part.name, part.range->first, part.tensor);
  if (part.range->first == 0) whole_ = tensor_assembly();
  if (auto added = whole_.add({.begin = whole_.next(), .parts = {part}}); !added) return added;
  for (const auto& [name, tensor] : whole_.take())
    if (auto taken = take(name, 0, tensor.contiguous()); !taken) return taken;
  return {};
}

}  // namespace troupe::actors
