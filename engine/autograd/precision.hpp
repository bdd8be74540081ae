#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>

#include "messages/error.hpp"

namespace troupe::engine {

/// Parameters and their gradients are f32 in each.
enum class precision : std::uint8_t {
  fp32,
  bf16,  ///< Autocast: bf16 arithmetic where it is safe.
  fp16,  ///< The same in f16. Its range is small: gradients need a loss scale.
};

/// "fp32", "bf16" or "fp16". Errors: bad_config listing the known ones.
[[nodiscard]] result<precision> parse_precision(const std::string& name);

/// What autocast computes in; nullopt: there is none.
[[nodiscard]] std::optional<at::ScalarType> autocast_type(precision of) noexcept;

}  // namespace troupe::engine
