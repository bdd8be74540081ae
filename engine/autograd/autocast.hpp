#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/Device.h>

namespace troupe::engine {

/// bf16 autocast on this thread while it lives, or none. The cache of cast weights stays off: it
/// would hold stale weights once the optimizer has stepped, and each weight is used once a forward
/// anyway.
class autocast_guard {
 public:
  autocast_guard(bool on, c10::DeviceType device)
      : device_(device), enabled_before_(at::autocast::is_autocast_enabled(device)) {
    at::autocast::set_autocast_cache_enabled(false);
    at::autocast::set_autocast_dtype(device, at::kBFloat16);
    at::autocast::set_autocast_enabled(device, on);
  }
  autocast_guard(const autocast_guard&) = delete;
  autocast_guard& operator=(const autocast_guard&) = delete;
  ~autocast_guard() { at::autocast::set_autocast_enabled(device_, enabled_before_); }

 private:
  c10::DeviceType device_;
  bool enabled_before_;
};

}  // namespace troupe::engine
