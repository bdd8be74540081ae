#pragma once

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "link_fixture.hpp"
#include "messages/codec/codec.hpp"
#include "messages/link/ucx/ucx_handles.hpp"
#include "messages/link/wire/session.hpp"

namespace troupe::messages::testing {

using bytes_view = std::span<const std::byte>;

template <class Backend>
constexpr link_transport transport_of =
    std::is_same_v<Backend, tcp_backend> ? link_transport::tcp : link_transport::shm;

/// A bare UCX client, driven by the test's own thread.
class stranger {
 public:
  stranger(link_transport transport, const std::string& address, const cluster_secret& secret = {})
      : handshake_(handshake::role::connects, secret.bytes(), fresh()) {
    context_ = std::move(ucx::make_context({.transport = transport}).value());
    worker_ = std::move(ucx::make_worker(context_.get()).value());
    for (unsigned id = ucx::handshake_id; id <= ucx::returns_id; ++id) {
      ucp_am_handler_param_t handler{};
      handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                           UCP_AM_HANDLER_PARAM_FIELD_ARG;
      handler.id = id;
      handler.arg = this;
      handler.cb = ignore;
      if (id == ucx::handshake_id) handler.cb = hear;
      if (id == ucx::frame_id) handler.cb = hear_frame;
      if (id == ucx::returns_id) handler.cb = hear_returns;
      REQUIRE(ucp_worker_set_am_recv_handler(worker_.get(), &handler) == UCS_OK);
    }
    endpoints_.push_back(connect(transport, address));
  }

  /// Another connection to the same place, over which nothing is said.
  ucp_ep_h connect(link_transport transport, const std::string& address) {
    const ucx::address where = ucx::resolve(address, false).value();
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr = {where.get(), where.length};
    params.err_mode =
        transport == link_transport::tcp ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
    params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
    ucp_ep_h made = nullptr;
    REQUIRE(ucp_ep_create(worker_.get(), &params, &made) == UCS_OK);
    return made;
  }

  template <class Header>
  void say(unsigned id, const Header& header, bytes_view data = {}) {
    say(id, &header, sizeof(header), data);
  }

  void say(unsigned id, const void* header, std::size_t bytes, bytes_view data,
           unsigned how = UCP_AM_SEND_FLAG_EAGER) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_REPLY | how;
    void* const request =
        ucp_am_send_nbx(endpoints_.front(), id, header, bytes, data.data(), data.size(), &params);
    if (!UCS_PTR_IS_PTR(request)) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
      ucp_worker_progress(worker_.get());
    }
    ucp_request_free(request);
  }

  ucx::handshake_message hello() const { return handshake_.hello(); }
  void say(const ucx::handshake_message& message) { say(ucx::handshake_id, message); }

  /// The next message of a handshake that comes.
  ucx::handshake_message hear_one() {
    REQUIRE(work_until([this] { return !heard_.empty(); }));
    const ucx::handshake_message out = heard_.front();
    heard_.pop_front();
    return out;
  }

  /// What the handshake says to the next message that comes.
  ucx::handshake_message answer() {
    const ucx::handshake_message theirs = hear_one();
    return handshake_.take(std::as_bytes(std::span(&theirs, 1))).value().value();
  }

  /// Becomes a peer. Returns all it said.
  std::vector<ucx::handshake_message> join() {
    std::vector<ucx::handshake_message> said = {hello()};
    say(said.back());
    for (int i = 0; i < 2; ++i) {
      said.push_back(answer());
      say(said.back());
    }
    return said;
  }

  session& keys() { return handshake_.keys(); }

  /// Seals and sends a frame's head.
  void say_frame(ucx::frame_prefix prefix, bytes_view data) {
    keys().sign(prefix, data.first(std::min<std::size_t>(prefix.header_bytes, data.size())));
    say(ucx::frame_id, prefix, data);
  }

  /// Seals and sends a bundle.
  void say_bundle(ucx::bundle_prefix prefix, bytes_view data) {
    keys().sign(prefix, data);
    say(ucx::bundle_id, prefix, data);
  }

  /// Seals and says where its memory is, or that it has the peer's at hand.
  void say_memory(ucx::memory_message message) {
    keys().sign(message);
    say(ucx::memory_id, message);
  }

  /// Seals and returns loans.
  void say_returns(const std::vector<std::uint64_t>& loans) {
    ucx::returns_prefix prefix;
    const auto data = std::as_bytes(std::span(loans));
    keys().sign(prefix, data);
    say(ucx::returns_id, prefix, data);
  }

  /// Waits for the next frame with loans and gives those.
  std::vector<ucx::loan> hear_loans() {
    REQUIRE(work_until([this] { return !lent_.empty(); }));
    return std::exchange(lent_, {});
  }

  /// Waits for loans that are returned.
  std::vector<std::uint64_t> hear_returns() {
    REQUIRE(work_until([this] { return !returned_.empty(); }));
    return std::exchange(returned_, {});
  }

  /// Lets UCX work until something holds; false when it does not in time.
  template <class Condition>
  bool work_until(Condition holds) {
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < bound) {
      if (holds()) return true;
      if (ucp_worker_progress(worker_.get()) == 0) std::this_thread::yield();
    }
    return false;
  }

  /// Lets UCX work until something has come into the mailbox.
  template <class T>
  T await(mailbox<T>& box) {
    REQUIRE(work_until([&] { return !box.stays_empty(1ms); }));
    return box.next();
  }

 private:
  static handshake::nonce fresh() {
    handshake::nonce out;
    fill_random(out);
    return out;
  }
  static ucs_status_t ignore(void*, const void*, std::size_t, void*, std::size_t,
                             const ucp_am_recv_param_t*) {
    return UCS_OK;
  }
  static ucs_status_t hear(void* self, const void* header, std::size_t bytes, void*, std::size_t,
                           const ucp_am_recv_param_t*) {
    ucx::handshake_message message;
    if (bytes != sizeof(message)) return UCS_OK;
    std::memcpy(&message, header, bytes);
    static_cast<stranger*>(self)->heard_.push_back(message);
    return UCS_OK;
  }

  static ucs_status_t hear_frame(void* self, const void* header, std::size_t, void* data,
                                 std::size_t, const ucp_am_recv_param_t*) {
    ucx::frame_prefix prefix;
    std::memcpy(&prefix, header, sizeof(prefix));
    auto& lent = static_cast<stranger*>(self)->lent_;
    const std::size_t before = lent.size();
    lent.resize(before + prefix.loans);
    std::memcpy(lent.data() + before, static_cast<const std::byte*>(data) + prefix.header_bytes,
                prefix.loans * sizeof(ucx::loan));
    return UCS_OK;
  }
  static ucs_status_t hear_returns(void* self, const void*, std::size_t, void* data,
                                   std::size_t bytes, const ucp_am_recv_param_t*) {
    auto& returned = static_cast<stranger*>(self)->returned_;
    const std::size_t before = returned.size();
    returned.resize(before + bytes / sizeof(std::uint64_t));
    std::memcpy(returned.data() + before, data, bytes);
    return UCS_OK;
  }

  handshake handshake_;
  std::deque<ucx::handshake_message> heard_;
  std::vector<ucx::loan> lent_;
  std::vector<std::uint64_t> returned_;
  ucx::context context_;
  ucx::worker worker_;
  std::vector<ucp_ep_h> endpoints_;
};

/// A frame's head, and what to seal it with, for a stranger to send.
struct head {
  explicit head(std::int64_t number) : data(encode(numbered(number)).value()) {
    prefix.lane = static_cast<std::uint8_t>(lane::data);
    prefix.header_bytes = static_cast<std::uint32_t>(data.size());
    prefix.chunk_bytes = ucx::least_chunk_bytes;
  }

  encoded_header data;
  ucx::frame_prefix prefix;
};

/// A bundle of frames with these numbers, the first of which is frame `sequence` of the data lane.
struct bundle_of {
  bundle_of(std::uint64_t sequence, const std::vector<std::int64_t>& numbers) {
    prefix.lane = static_cast<std::uint8_t>(lane::data);
    prefix.frames = static_cast<std::uint16_t>(numbers.size());
    prefix.sequence = sequence;
    for (const std::int64_t number : numbers) {
      const head one(number);
      const ucx::bundle_entry entry{one.prefix.header_bytes, 0, 0};
      const auto entry_bytes = std::as_bytes(std::span(&entry, 1));
      data.insert(data.end(), entry_bytes.begin(), entry_bytes.end());
      data.insert(data.end(), one.data.begin(), one.data.end());
    }
  }

  ucx::bundle_prefix prefix;
  std::vector<std::byte> data;
};

}  // namespace troupe::messages::testing
