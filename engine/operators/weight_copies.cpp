#include "engine/operators/weight_copies.hpp"

#include <ATen/core/grad_mode.h>

#include <cstddef>

#include "engine/autograd/storage_watch.hpp"

namespace troupe::engine {

bool weight_copies::origin::is(const at::Tensor& weight, at::ScalarType as) const {
  return storage._unsafe_get_target() == weight.storage().unsafeGetStorageImpl() &&
         data == weight.const_data_ptr() &&
         version == static_cast<std::uint32_t>(weight._version()) && type == as;
}

at::Tensor weight_copies::get(const at::Tensor& weight, at::ScalarType type, weight_form form,
                              const maker& make) {
  const at::NoGradGuard no_grad;
  if (weight.is_inference()) return make();
  if (!of_ || !of_->is(weight, type)) {
    copies_ = {};
    of_ = origin{weight.storage().getWeakStorageImpl(), weight.const_data_ptr(),
                 static_cast<std::uint32_t>(weight._version()), type};
  }
  auto& copy = copies_[static_cast<std::size_t>(form)];
  if (!copy.defined()) copy = make();
  if (auto* const seen = storage_watch::current()) seen->leave_out(copy);  // with views of it
  return copy;
}

std::uint64_t weight_copies::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& each : copies_)
    if (each.defined()) sum += static_cast<std::uint64_t>(each.numel()) * each.element_size();
  return sum;
}

}  // namespace troupe::engine
