#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

#include "engine/autograd/precision.hpp"

namespace troupe::engine {

/// What autocast computes in; nullopt: there is none.
[[nodiscard]] inline std::optional<at::ScalarType> autocast_type(precision of) noexcept {
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

/// What this thread's autocast computes in now; nullopt: there is none.
[[nodiscard]] inline std::optional<at::ScalarType> current_autocast(c10::DeviceType device) {
  if (!at::autocast::is_autocast_enabled(device)) return std::nullopt;
  return at::autocast::get_autocast_dtype(device);
}

/// Autocast to `type` on this thread while it lives, or none. The cache of cast weights stays off:
/// it would hold stale weights once the optimizer has stepped, and each weight is used once a
/// forward anyway.
class autocast_guard {
 public:
  autocast_guard(std::optional<at::ScalarType> type, c10::DeviceType device)
      : device_(device),
        enabled_before_(at::autocast::is_autocast_enabled(device)),
        type_before_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_cache_enabled(false);
    if (type) at::autocast::set_autocast_dtype(device, *type);
    at::autocast::set_autocast_enabled(device, type.has_value());
  }
  autocast_guard(const autocast_guard&) = delete;
  autocast_guard& operator=(const autocast_guard&) = delete;
  ~autocast_guard() {
    at::autocast::set_autocast_dtype(device_, type_before_);
    at::autocast::set_autocast_enabled(device_, enabled_before_);
  }

 private:
  c10::DeviceType device_;
  bool enabled_before_;
  at::ScalarType type_before_;
};

}  // namespace troupe::engine
