#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "messages/base/error.hpp"

namespace troupe::engine {

/// Parameters and their gradients are f32 in each.
enum class precision : std::uint8_t {
  fp32,
  bf16,  ///< Autocast: bf16 arithmetic where it is safe.
  fp16,  ///< The same in f16. Its range is small: gradients need a loss scale.
};

/// In the order of the values.
inline constexpr std::array<std::string_view, 3> precision_names{"fp32", "bf16", "fp16"};

[[nodiscard]] constexpr std::string_view name_of(precision value) noexcept {
  return precision_names[static_cast<std::size_t>(value)];
}

/// Errors: bad_config listing the known names.
[[nodiscard]] result<precision> parse_precision(const std::string& name);

}  // namespace troupe::engine
