#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/collective/nccl/api.hpp"
#include "engine/collective/nccl/communicator.hpp"
#include "engine/collective/port.hpp"
#include "engine/collective/reach.hpp"

namespace troupe::engine::nccl {

/// What is not as usual, in tests above all.
struct maker_options {
  search places = {.named = {}, .setting = "--nccl", .site_packages = site_packages_of_torch()};
  c10::DeviceType type = c10::DeviceType::CUDA;  ///< Of the devices that NCCL knows.
  /// Makes a communicator's device; empty: torch_device does.
  std::function<result<std::shared_ptr<device>>(c10::Device)> device_for = {};
  patience waits = {};
  std::function<void(const std::string& line)> hung = {};  ///< See terms.
};

/// Makes ports by NCCL, which it loads when it is first asked for a device that NCCL knows. Its
/// sockets are the process's, whichever maker claims them first (see sockets.hpp).
class maker final : public collective_maker {
 public:
  explicit maker(maker_options how = {}) : how_(std::move(how)) {}

  [[nodiscard]] result<std::string> library_for(c10::Device on) const override;
  [[nodiscard]] std::optional<socket_reach> sockets() const override;
  [[nodiscard]] result<std::string> invite(std::uint32_t ranks, socket_reach sockets,
                                           c10::Device on) const override;
  [[nodiscard]] result<std::shared_ptr<collective_port>> join(
      const collective_place& place) const override;

 private:
  using library = result<std::shared_ptr<const api>>;
  [[nodiscard]] library loaded() const;

  const maker_options how_;
  mutable std::mutex mutex_;
  mutable std::optional<library> library_;  // guarded by mutex_
};

/// An invitation as text without spaces, and back. Errors: bad_frame.
[[nodiscard]] std::string to_text(const invitation& from);
[[nodiscard]] result<invitation> parse_invitation(const std::string& text);

}  // namespace troupe::engine::nccl
