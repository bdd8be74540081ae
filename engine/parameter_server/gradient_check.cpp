#include "engine/parameter_server/gradient_check.hpp"

#include <c10/util/StringUtil.h>

#include <cstdint>
#include <string>

namespace troupe::engine {
namespace {

at::ScalarType dtype_of(const parameter_entry& entry) {
  return static_cast<at::ScalarType>(entry.dtype);
}

result<void> check_dtype(const parameter_entry& entry, at::ScalarType type) {
  if (type == dtype_of(entry) || type == at::kBFloat16) return {};
  return fail(errc::bad_data, "the gradient of '" + entry.name + "' has dtype " +
                                  c10::toString(type) + ", and the parameter " +
                                  c10::toString(dtype_of(entry)));
}

result<void> check_rows(const parameter_entry& entry, const tensor_batch::entry& gradient) {
  const auto refuse = [&](const std::string& why) {
    return fail(errc::bad_data, "the gradient of '" + entry.name + "' " + why);
  };
  const auto& rows = gradient.rows;
  if (!entry.by_rows) return refuse("comes by rows, and the parameter is updated as a whole");
  if (rows.dim() != 1 || rows.scalar_type() != at::kLong || !rows.is_contiguous() ||
      rows.numel() != gradient.values.size(0))
    return refuse("has rows that are not one index for each of its " +
                  std::to_string(gradient.values.size(0)) + " rows of values");
  const auto* const index = rows.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < rows.numel(); ++i)
    if (index[i] < 0 || index[i] >= entry.shape.front())
      return refuse("has row " + std::to_string(entry.first_row + index[i]) +
                    ", and the rows here are " + std::to_string(entry.shape.front()) + " from " +
                    std::to_string(entry.first_row) + " on");
  return {};
}

result<void> check_gradient(const parameter_entry& entry, const tensor_batch::entry& gradient) {
  if (!gradient.values.defined())
    return fail(errc::bad_data, "the gradient of '" + entry.name + "' has no values");
  auto shape = entry.shape;
  if (gradient.rows.defined() && !shape.empty() && gradient.values.dim() > 0)
    shape.front() = gradient.values.size(0);
  if (gradient.values.sizes() != at::IntArrayRef(shape))
    return fail(errc::bad_data, "the gradient of '" + entry.name + "' has shape " +
                                    c10::str(gradient.values.sizes()) + ", and the parameter " +
                                    c10::str(at::IntArrayRef(entry.shape)));
  if (auto good = check_dtype(entry, gradient.values.scalar_type()); !good) return good;
  return gradient.rows.defined() ? check_rows(entry, gradient) : result<void>();
}

}  // namespace

result<void> check_gradients(const tensor_batch& gradients,
                             const std::vector<parameter_entry>& directory) {
  if (auto good = check_packed(gradients, directory); !good) return good;
  std::vector<bool> given(directory.size());
  const auto once = [&](std::uint32_t index) -> result<void> {
    if (index >= directory.size())
      return tl::unexpected(no_such_parameter(index, directory.size()));
    if (given[index])
      return fail(errc::bad_data, "the gradient of '" + directory[index].name + "' is given twice");
    given[index] = true;
    return {};
  };
  for (const auto index : gradients.packed) {
    auto good = once(index).and_then(
        [&] { return check_dtype(directory[index], gradients.values.scalar_type()); });
    if (!good) return good;
  }
  for (const auto& each : gradients.entries) {
    auto good = once(each.parameter).and_then([&] {
      return check_gradient(directory[each.parameter], each);
    });
    if (!good) return good;
  }
  return {};
}

}  // namespace troupe::engine
