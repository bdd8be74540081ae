#pragma once

#include <cstdint>

namespace troupe::engine {

/// Dynamic loss scaling for f16: Micikevicius et al., "Mixed precision training", 2018. The loss is
/// multiplied by `scale` before the backward, the gradients by its inverse after it; a step whose
/// gradients are not finite is skipped and the scale falls. A value: copy it to save it.
struct loss_scaler {
  double scale = 65536;
  double growth = 2;     ///< After `interval` steps in a row that were applied.
  double backoff = 0.5;  ///< After a step that was skipped.
  double least = 1;
  double most = 16777216;
  std::uint32_t interval = 2000;
  std::uint32_t applied = 0;  ///< Steps in a row so far.

  /// Whether the scale may be what made a step's gradients overflow.
  [[nodiscard]] bool can_fall() const noexcept { return scale > least; }

  /// Notes that a step was applied (`finite`) or skipped.
  void hear(bool finite) noexcept;

  bool operator==(const loss_scaler&) const = default;
};

}  // namespace troupe::engine
