#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "messages/base/error.hpp"

namespace troupe::engine {

enum class loss_kind : std::uint8_t {
  cross_entropy,
  mse,  ///< Against one-hot labels.
};

/// In the order of the values.
inline constexpr std::array<std::string_view, 2> loss_names{"cross-entropy", "mse"};

[[nodiscard]] constexpr std::string_view name_of(loss_kind value) noexcept {
  return loss_names[static_cast<std::size_t>(value)];
}

/// Errors: bad_config listing the known names.
[[nodiscard]] result<loss_kind> parse_loss(const std::string& name);

}  // namespace troupe::engine
