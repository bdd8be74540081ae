#include "engine/state/scaler_state.hpp"

#include <ATen/ops/tensor.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace troupe::engine {

at::Tensor to_tensor(const loss_scaler& scaler) {
  return at::tensor({scaler.scale, static_cast<double>(scaler.applied)}, at::kDouble);
}

result<loss_scaler> from_tensor(const at::Tensor& kept, loss_scaler rules) {
  const auto refuse = [](const std::string& why) {
    return fail(errc::bad_data, std::string(scaler_name) + " is not a loss scaler's state: " + why);
  };
  if (kept.dim() != 1 || kept.numel() != 2 || kept.scalar_type() != at::kDouble)
    return refuse("it should be two numbers in F64");
  const double scale = kept[0].item<double>(), applied = kept[1].item<double>();
  if (!(scale >= rules.least && scale <= rules.most))
    return refuse("a scale of " + std::to_string(scale));
  if (!(applied >= 0 && applied < 4294967296.0) || applied != std::floor(applied))
    return refuse(std::to_string(applied) + " steps");
  rules.scale = scale;
  rules.applied = static_cast<std::uint32_t>(applied);
  return rules;
}

}  // namespace troupe::engine
