#include "messages/link/ucx/carrier.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace troupe::messages::ucx {
namespace {

bool passes_the_door(wire::message_id id) {
  switch (id) {
    case wire::frame_id:
    case wire::bundle_id:
    case wire::chunk_id:
    case wire::returns_id:
      return false;
    default:
      return true;
  }
}

}  // namespace

std::vector<std::byte> ucx_carrier::address() {
  // Asked for when the handshake is done: from now on the peer may send.
  session_ = whom().keys()->session;
  mover_.add(*session_, *this);
  return mover_.address();
}

result<void> ucx_carrier::reach(std::span<const std::byte> address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  // With the PEER mode UCX would silently leave shared memory out.
  params.err_mode = is_shm_ ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&ucx_carrier::on_failed, this};
  const auto status = ucp_ep_create(mover_.worker(), &params, &endpoint_);
  if (status == UCS_OK) return {};
  endpoint_ = nullptr;
  return tl::unexpected(to_error(status, "UCX cannot reach it", errc::peer_lost));
}

void ucx_carrier::on_failed(void* self, ucp_ep_h, ucs_status_t status) {
  auto* const carrier = static_cast<ucx_carrier*>(self);
  if (std::exchange(carrier->failed_, true)) return;
  carrier->whom().broken({errc::peer_lost, ucs_status_string(status)});
}

void ucx_carrier::send(sending& what) {
  if (passes_the_door(what.id)) return door_carrier::send(what);
  if (endpoint_ == nullptr || closing_ != nullptr) return whom().sent(what, false);
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = what.id == wire::chunk_id ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  params.cb.send = &ucx_carrier::on_sent;
  what.with = this;
  params.user_data = &what;
  const auto header = what.head();
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, what.id, header.data(), header.size(), what.data.data(),
                      what.data.size(), &params);
  if (UCS_PTR_IS_PTR(request)) return;
  finish_send(what, UCS_PTR_RAW_STATUS(request));
}

void ucx_carrier::on_sent(void* request, ucs_status_t status, void* what) {
  ucp_request_free(request);
  auto* const ended = static_cast<sending*>(what);
  static_cast<ucx_carrier*>(ended->with)->finish_send(*ended, status);
}

void ucx_carrier::finish_send(sending& what, ucs_status_t status) {
  if (status != UCS_OK && !std::exchange(failed_, true)) {
    whom().broken({errc::peer_lost, ucs_status_string(status)});
  }
  whom().sent(what, status == UCS_OK);
}

void ucx_carrier::take_message(wire::message_id id, std::span<const std::byte> header,
                               std::span<const std::byte> data) {
  whom().take({id, header, data});
}

ucs_status_t ucx_carrier::take_chunk(std::span<const std::byte> header, void* data,
                                     std::uint64_t bytes, bool rendezvous) {
  if (!rendezvous) {
    fail("a chunk came eagerly");
    return UCS_OK;
  }
  // UCX tells the sender of a chunk that is not received that it is done.
  return whom().offer(header, data, bytes) ? UCS_INPROGRESS : UCS_OK;
}

void ucx_carrier::fail(std::string_view why) {
  whom().break_off({errc::io_failed, fmt::format("a message could not be taken in: {}", why)});
}

void ucx_carrier::receive(receiving& what) {
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  params.cb.recv_am = &ucx_carrier::on_received;
  what.with = this;
  params.user_data = &what;
  mover_.receive_started();
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(mover_.worker(), what.offered, what.data, what.bytes, &params);
  if (UCS_PTR_IS_PTR(request)) return;
  finish_receive(what, UCS_PTR_RAW_STATUS(request));
}

void ucx_carrier::on_received(void* request, ucs_status_t status, std::size_t, void* what) {
  ucp_request_free(request);
  auto* const ended = static_cast<receiving*>(what);
  static_cast<ucx_carrier*>(ended->with)->finish_receive(*ended, status);
}

void ucx_carrier::finish_receive(receiving& what, ucs_status_t status) {
  mover_.receive_ended();
  if (status != UCS_OK && !std::exchange(failed_, true)) {
    whom().broken({errc::peer_lost, ucs_status_string(status)});
  }
  whom().received(what, status == UCS_OK);
}

void ucx_carrier::drop(void* offered) {
  ucp_am_data_release(mover_.worker(), offered);
}

void ucx_carrier::hang_up() {
  if (session_) mover_.remove(*session_);
  session_.reset();
  close_endpoint();
  door_carrier::hang_up();
}

void ucx_carrier::close_endpoint() {
  if (endpoint_ == nullptr || closing_ != nullptr) return;
  // Without the PEER mode UCX cannot close an endpoint in mid-flight, and keeps the requests of a
  // dead peer for ever; such an endpoint is left to the worker's end.
  if (is_shm_ && (failed_ || !whom().is_quiet())) return;
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = is_shm_ ? 0 : UCP_EP_CLOSE_FLAG_FORCE;
  params.cb.send = &ucx_carrier::on_closed;
  params.user_data = this;
  closing_ = ucp_ep_close_nbx(endpoint_, &params);
  if (UCS_PTR_IS_PTR(closing_)) return;
  closing_ = nullptr;
  endpoint_ = nullptr;
}

void ucx_carrier::give_up_closing() {
  if (closing_ != nullptr) ucp_request_free(std::exchange(closing_, nullptr));
}

void ucx_carrier::on_closed(void*, ucs_status_t, void* self) {
  auto* const carrier = static_cast<ucx_carrier*>(self);
  carrier->give_up_closing();
  carrier->endpoint_ = nullptr;
  carrier->whom().want_attention();
}

}  // namespace troupe::messages::ucx
