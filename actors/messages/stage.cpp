#include "actors/messages/stage.hpp"

#include <ATen/ops/empty.h>

#include <cstring>
#include <span>
#include <stdexcept>

#include "engine/schedule/packed_plan.hpp"

namespace troupe::actors {

packed_actions packed_actions::pack(const std::vector<engine::action>& actions) {
  const auto numbers = engine::pack(actions);
  packed_actions packed{at::empty({static_cast<std::int64_t>(numbers.size())}, at::kInt)};
  if (!numbers.empty())
    std::memcpy(packed.numbers.mutable_data_ptr(), numbers.data(),
                numbers.size() * sizeof(std::int32_t));
  return packed;
}

std::vector<engine::action> packed_actions::unpack() const {
  if (!numbers.defined() || numbers.scalar_type() != at::kInt || numbers.dim() != 1 ||
      !numbers.is_contiguous())
    throw std::invalid_argument("a stage's plan is malformed");
  auto actions = engine::unpack(
      std::span(numbers.const_data_ptr<std::int32_t>(), static_cast<std::size_t>(numbers.numel())));
  if (!actions) throw std::invalid_argument(actions.error().text);
  return std::move(*actions);
}

}  // namespace troupe::actors
