#include "engine/autograd/precision.hpp"

namespace troupe::engine {

result<precision> parse_precision(const std::string& name) {
  if (name == "fp32") return precision::fp32;
  if (name == "bf16") return precision::bf16;
  if (name == "fp16") return precision::fp16;
  return fail(errc::bad_config, "unknown precision '" + name + "'; known: fp32, bf16, fp16");
}

std::optional<at::ScalarType> autocast_type(precision of) noexcept {
  switch (of) {
    case precision::bf16:
      return at::kBFloat16;
    case precision::fp16:
      return at::kHalf;
    case precision::fp32:
      break;
  }
  return std::nullopt;
}

}  // namespace troupe::engine
