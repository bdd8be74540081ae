#include "messages/link/ucx/mover.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "messages/link/ucx/carrier.hpp"

namespace troupe::messages::ucx {

result<std::unique_ptr<mover>> mover::make(const link_options& options, link_counters& counters) {
  std::unique_ptr<mover> out(new mover(counters));
  if (auto started = out->start(options); !started) return tl::unexpected(started.error());
  return out;
}

mover::~mover() = default;

result<void> mover::start(const link_options& options) {
  auto made = make_context(options);
  if (!made) return tl::unexpected(std::move(made.error()));
  context_ = std::move(*made);
  auto worker = make_worker(context_.get());
  if (!worker) return tl::unexpected(std::move(worker.error()));
  worker_ = std::move(*worker);
  if (const auto status = ucp_worker_get_efd(worker_.get(), &event_fd_); status != UCS_OK) {
    return tl::unexpected(to_error(status, "UCX cannot be waited for"));
  }
  if (auto read = read_address(); !read) return read;
  return set_handlers();
}

result<void> mover::read_address() {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  if (const auto status = ucp_worker_get_address(worker_.get(), &address, &bytes);
      status != UCS_OK) {
    return tl::unexpected(to_error(status, "UCX does not say where it is reached"));
  }
  const auto* const data = reinterpret_cast<const std::byte*>(address);
  address_.assign(data, data + bytes);
  ucp_worker_release_address(worker_.get(), address);
  if (bytes <= wire::most_address_bytes) return {};
  return fail(errc::transport_missing,
              fmt::format("UCX's address takes {} bytes, too many devices: name some in "
                          "UCX_NET_DEVICES",
                          bytes));
}

void mover::drain() {
  const auto most = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  // Endpoints go on ending after their last request: until UCX finds nothing to do.
  for (int idle = 0; idle < 16 && std::chrono::steady_clock::now() < most;) {
    const bool worked = progress();
    idle = worked || receives_ > 0 ? 0 : idle + 1;
  }
}

/// The connection that a message names, by its seal.
ucx_carrier* mover::find(std::span<const std::byte> header) {
  wire::prefix_seal seal;
  if (header.size() < sizeof(seal)) return nullptr;
  std::memcpy(&seal, header.last(sizeof(seal)).data(), sizeof(seal));
  const auto found = carriers_.find(seal.session);
  if (found != carriers_.end()) return found->second;
  ++counters_.unknown_sessions;
  return nullptr;
}

template <unsigned Id>
ucs_status_t mover::on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                               std::size_t bytes, const ucp_am_recv_param_t* param) {
  const std::span<const std::byte> head(static_cast<const std::byte*>(header), header_bytes);
  ucx_carrier* const carrier = static_cast<mover*>(self)->find(head);
  if (carrier == nullptr) return UCS_OK;
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  try {
    if constexpr (Id == wire::chunk_id) return carrier->take_chunk(head, data, bytes, rendezvous);
    const std::span<const std::byte> here(static_cast<const std::byte*>(data), bytes);
    // Data that is still at the sender cannot be read here.
    carrier->take_message(static_cast<wire::message_id>(Id), head,
                          rendezvous ? std::span<const std::byte>() : here);
  } catch (const std::exception& problem) {  // must not cross UCX
    carrier->fail(problem.what());
  }
  return UCS_OK;
}

template <unsigned Id>
result<void> mover::set_handler() {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = Id;
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  params.cb = &mover::on_message<Id>;
  params.arg = this;
  const auto status = ucp_worker_set_am_recv_handler(worker_.get(), &params);
  if (status == UCS_OK) return {};
  return tl::unexpected(to_error(status, "UCX takes no handler"));
}

result<void> mover::set_handlers() {
  result<void> out = set_handler<wire::frame_id>();
  if (out) out = set_handler<wire::bundle_id>();
  if (out) out = set_handler<wire::chunk_id>();
  if (out) out = set_handler<wire::returns_id>();
  return out;
}

}  // namespace troupe::messages::ucx
