#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "messages/link/seal/format.hpp"
#include "messages/link/ucx/handles.hpp"

namespace troupe::messages::testing {

/// A worker of UCX as a peer over shared memory has it, driven by the test's own thread.
class ucx_side {
 public:
  using listener =
      std::function<void(unsigned id, std::span<const std::byte>, std::span<const std::byte>)>;

  explicit ucx_side(listener hears)
      : hears_(std::move(hears)),
        library_(
            std::move(ucx::library::open(link_options{.transport = link_transport::shm}).value())),
        worker_(std::move(ucx::make_worker(library_->context()).value())) {
    for (const unsigned id : {unsigned{wire::frame_id}, unsigned{wire::bundle_id},
                              unsigned{wire::chunk_id}, unsigned{wire::returns_id}, receipt_id}) {
      handlers_.push_back(std::make_unique<handler>(handler{this, id}));
      ucp_am_handler_param_t params{};
      params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                          UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
      params.id = id;
      params.flags = UCP_AM_FLAG_WHOLE_MSG;
      params.arg = handlers_.back().get();
      params.cb = [](void* arg, const void* header, std::size_t header_bytes, void* data,
                     std::size_t bytes, const ucp_am_recv_param_t*) {
        const auto* const to = static_cast<handler*>(arg);
        to->side->hears_(to->id, {static_cast<const std::byte*>(header), header_bytes},
                         {static_cast<const std::byte*>(data), bytes});
        return UCS_OK;
      };
      REQUIRE(ucp_worker_set_am_recv_handler(worker_.get(), &params) == UCS_OK);
    }
  }
  ucx_side(const ucx_side&) = delete;
  ucx_side& operator=(const ucx_side&) = delete;

  /// What the address message of this worker carries: a sample of memory, then UCX's own address.
  [[nodiscard]] std::vector<std::byte> address() {
    const std::uint64_t at = reinterpret_cast<std::uintptr_t>(mark_.data());
    std::vector<std::byte> out(sizeof(at));
    std::memcpy(out.data(), &at, sizeof(at));
    out.insert(out.end(), mark_.begin(), mark_.end());
    ucp_address_t* mine = nullptr;
    std::size_t bytes = 0;
    REQUIRE(ucp_worker_get_address(worker_.get(), &mine, &bytes) == UCS_OK);
    const auto* const data = reinterpret_cast<const std::byte*>(mine);
    out.insert(out.end(), data, data + bytes);
    ucp_worker_release_address(worker_.get(), mine);
    return out;
  }

  /// `address`: what the other side's address message carried.
  void reach(std::span<const std::byte> address) {
    const auto of_ucx = address.subspan(sample_bytes);
    const std::vector<std::byte> aligned(of_ucx.begin(), of_ucx.end());
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(aligned.data());
    REQUIRE(ucp_ep_create(worker_.get(), &params, &endpoint_) == UCS_OK);
  }

  void say(unsigned id, std::span<const std::byte> header, std::span<const std::byte> data,
           unsigned how = UCP_AM_SEND_FLAG_EAGER) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = how;
    void* const request = ucp_am_send_nbx(endpoint_, id, header.data(), header.size(), data.data(),
                                          data.size(), &params);
    if (!UCS_PTR_IS_PTR(request)) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) work();
    ucp_request_free(request);
  }

  bool work() { return ucp_worker_progress(worker_.get()) > 0; }

  static constexpr unsigned receipt_id = 64;
  static constexpr std::size_t sample_bytes = 24;

 private:
  struct handler {
    ucx_side* side;
    unsigned id;
  };

  listener hears_;
  std::vector<std::unique_ptr<handler>> handlers_;
  std::array<std::byte, 16> mark_ = {std::byte{1}, std::byte{2}};
  std::unique_ptr<ucx::library> library_;
  ucx::worker worker_;
  ucp_ep_h endpoint_ = nullptr;
};

}  // namespace troupe::messages::testing
