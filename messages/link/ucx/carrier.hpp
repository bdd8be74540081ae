#pragma once

#include <optional>
#include <string_view>

#include "messages/link/door/door_carrier.hpp"
#include "messages/link/ucx/mover.hpp"

namespace troupe::messages::ucx {

/// Carries a connection's frames as Active Messages of UCX, and the rest over the door, whose end is
/// the sign of a peer's death. UCX is told of a peer only when that has proved itself. One thread.
class ucx_carrier final : public door::door_carrier {
 public:
  template <class From>
  ucx_carrier(waiting_room where, const link_options& options, From from, mover& by)
      : door_carrier(where, options.bounds, std::move(from)),
        mover_(by),
        is_shm_(options.transport == link_transport::shm) {}

  void send(sending& what) override;
  void receive(receiving& what) override;
  void drop(void* offered) override;
  [[nodiscard]] std::vector<std::byte> address() override;
  [[nodiscard]] result<void> reach(std::span<const std::byte> address) override;
  void hang_up() override;

  // Active Messages from this peer. The result is for UCX.
  void take_message(wire::message_id id, std::span<const std::byte> header,
                    std::span<const std::byte> data);
  [[nodiscard]] ucs_status_t take_chunk(std::span<const std::byte> header, void* data,
                                        std::uint64_t bytes, bool rendezvous);
  /// A handler failed on this side, as when memory is short.
  void fail(std::string_view why);

  /// UCX knows nothing of this object any more.
  [[nodiscard]] bool is_released() const { return endpoint_ == nullptr && closing_ == nullptr; }
  /// To be called before the worker is destroyed, which asserts that nobody waits for an endpoint's
  /// close any more.
  void give_up_closing();

 private:
  static void on_sent(void* request, ucs_status_t status, void* what);
  static void on_received(void* request, ucs_status_t status, std::size_t bytes, void* what);
  static void on_failed(void* self, ucp_ep_h endpoint, ucs_status_t status);
  static void on_closed(void* request, ucs_status_t status, void* self);
  void finish_send(sending& what, ucs_status_t status);
  void finish_receive(receiving& what, ucs_status_t status);
  void close_endpoint();

  mover& mover_;
  const bool is_shm_;
  std::optional<std::uint64_t> session_;
  ucp_ep_h endpoint_ = nullptr;
  void* closing_ = nullptr;  // the request that closes it
  bool failed_ = false;
};

}  // namespace troupe::messages::ucx
