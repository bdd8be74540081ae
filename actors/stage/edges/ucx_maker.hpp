#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "actors/stage/edges/ucx_port.hpp"
#include "engine/collective/port.hpp"

namespace troupe::actors {

/// What is not as usual, in tests above all.
struct ucx_maker_options {
  c10::DeviceType type = c10::DeviceType::CUDA;  ///< Of the devices whose memory is moved.
  messages::ucx::memory_kind memory = messages::ucx::memory_kind::cuda;
  ucx_patience waits = {};
  holding hold = {};  ///< See ucx_terms.
};

/// Makes ports by UCX, which it opens when it is first asked for a device of its type. They join
/// two processes of one machine, of which one sends (see ucx_port). No sockets.
class ucx_maker final : public engine::collective_maker {
 public:
  explicit ucx_maker(ucx_maker_options how = {}) : how_(std::move(how)) {}

  [[nodiscard]] result<std::string> library_for(c10::Device on) const override;
  [[nodiscard]] std::optional<engine::socket_reach> sockets() const override { return {}; }
  /// Opens the sender's port, which waits here until the sender joins. Those that none has joined
  /// for as long as a port waits for its other end are given up.
  [[nodiscard]] result<std::string> invite(std::uint32_t ranks, engine::socket_reach sockets,
                                           c10::Device on) const override;
  [[nodiscard]] result<std::shared_ptr<engine::collective_port>> join(
      const engine::collective_place& place) const override;

 private:
  struct invited {
    std::shared_ptr<ucx_port> port;
    std::chrono::steady_clock::time_point since;
  };
  using library = result<std::shared_ptr<const messages::ucx::library>>;
  [[nodiscard]] library opened(c10::Device on) const;
  [[nodiscard]] result<ucx_terms> terms_for(std::string name, c10::Device on) const;

  const ucx_maker_options how_;
  mutable std::mutex mutex_;
  mutable std::optional<library> library_;          // guarded, as all below
  mutable std::map<std::string, invited> invited_;  // by their invitations
};

}  // namespace troupe::actors
