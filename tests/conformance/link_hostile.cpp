// What a UCX link does with a peer that speaks UCX but breaks our protocol: it closes that peer's
// connection, counts it, and harms nobody else.
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <span>

#include "link_fixture.hpp"
#include "messages/codec/codec.hpp"
#include "messages/link/ucx_handles.hpp"
#include "messages/link/ucx_wire.hpp"

namespace troupe::messages::testing {
namespace {

/// A bare UCX client, driven by the test's own thread.
class stranger {
 public:
  stranger(ucx_transport transport, const std::string& address) {
    context_ = std::move(ucx::make_context({.transport = transport}).value());
    worker_ = std::move(ucx::make_worker(context_.get()).value());
    for (unsigned id = ucx::greeting_id; id <= ucx::farewell_id; ++id) {
      ucp_am_handler_param_t handler{};
      handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB;
      handler.id = id;
      handler.cb = [](void*, const void*, std::size_t, void*, std::size_t,
                      const ucp_am_recv_param_t*) { return UCS_OK; };
      REQUIRE(ucp_worker_set_am_recv_handler(worker_.get(), &handler) == UCS_OK);
    }
    const ucx::address where = ucx::resolve(address, false).value();
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr = {where.get(), where.length};
    params.err_mode =
        transport == ucx_transport::tcp ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
    params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
    REQUIRE(ucp_ep_create(worker_.get(), &params, &endpoint_) == UCS_OK);
  }

  template <class Header>
  void say(unsigned id, const Header& header, std::span<const std::byte> data = {}) {
    say(id, &header, sizeof(header), data);
  }

  void say(unsigned id, const void* header, std::size_t bytes, std::span<const std::byte> data,
           unsigned how = UCP_AM_SEND_FLAG_EAGER) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_REPLY | how;
    void* const request =
        ucp_am_send_nbx(endpoint_, id, header, bytes, data.data(), data.size(), &params);
    if (!UCS_PTR_IS_PTR(request)) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
      ucp_worker_progress(worker_.get());
    }
    ucp_request_free(request);
  }

  void greet() { say(ucx::greeting_id, ucx::greeting{.protocol = protocol_version}); }

  /// Lets UCX work until something has come into the mailbox.
  template <class T>
  T await(mailbox<T>& box) {
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < bound) {
      ucp_worker_progress(worker_.get());
      if (!box.stays_empty(1ms)) return box.next();
    }
    throw std::runtime_error("an event did not come in time");
  }

 private:
  ucx::context context_;
  ucx::worker worker_;
  ucp_ep_h endpoint_ = nullptr;
};

template <class Backend>
constexpr ucx_transport transport_of =
    std::is_same_v<Backend, tcp_backend> ? ucx_transport::tcp : ucx_transport::shm;

}  // namespace

TEMPLATE_TEST_CASE("a peer that breaks the protocol loses its link and nobody else does", "[link]",
                   tcp_backend, shm_backend) {
  pair_of_nodes<TestType> nodes;
  stranger them(transport_of<TestType>, nodes.address);
  them.greet();
  const peer_id bad = them.await(nodes.server.ups);

  const encoded_header header = encode(numbered(1)).value();
  ucx::frame_prefix prefix;
  prefix.lane = static_cast<std::uint8_t>(lane::data);
  prefix.header_bytes = static_cast<std::uint32_t>(header.size());
  prefix.chunk_bytes = ucx::least_chunk_bytes;
  them.say(ucx::frame_id, prefix, header);
  CHECK(number_of(them.await(nodes.server.frames)) == 1);  // so far it behaves
  prefix.sequence = 1;

  SECTION("a prefix of another size") {
    them.say(ucx::frame_id, "short", 5, header);
  }
  SECTION("a number that was used") {
    prefix.sequence = 0;
    them.say(ucx::frame_id, prefix, header);
  }
  SECTION("a number too far ahead") {
    prefix.sequence = 1 << 30;
    them.say(ucx::frame_id, prefix, header);
  }
  SECTION("bytes that do not add up") {
    prefix.inline_bytes = 1;
    them.say(ucx::frame_id, prefix, header);
  }
  SECTION("a header that is garbage") {
    const std::vector<std::byte> garbage(header.size(), std::byte{0xA5});
    them.say(ucx::frame_id, prefix, garbage);
  }
  SECTION("a chunk of nothing") {
    them.say(ucx::chunk_id, ucx::chunk_prefix{.lane = 1, .sequence = 1, .bytes = 8},
             std::span(header).first(8));
  }
  SECTION("a frame by rendezvous") {
    them.say(ucx::frame_id, &prefix, sizeof(prefix), header, UCP_AM_SEND_FLAG_RNDV);
  }
  SECTION("an unknown message") {
    them.say(77, "?", 1, {});
  }
  SECTION("a message far beyond the known ones") {
    them.say(65535, "?", 1, {});
  }
  SECTION("a second greeting") {
    them.greet();
  }
  SECTION("a farewell of another size") {
    them.say(ucx::farewell_id, "bye", 3, {});
  }
  const auto [peer, why] = them.await(nodes.server.downs);
  CHECK(peer == bad);
  CHECK(why.code == errc::bad_frame);
  CHECK(nodes.server.wire->stats().bad_frames == 1);
  CHECK(nodes.server.wire->stats().peers == 1);

  nodes.client.wire->send(nodes.to_server, with_bytes(7, 1 << 20), {});
  CHECK(number_of(them.await(nodes.server.frames)) == 7);
}

TEMPLATE_TEST_CASE("a stranger that speaks another version is never a peer", "[link]", tcp_backend,
                   shm_backend) {
  pair_of_nodes<TestType> nodes;
  stranger them(transport_of<TestType>, nodes.address);
  SECTION("another version") {
    them.say(ucx::greeting_id, ucx::greeting{.protocol = 999});
  }
  SECTION("another protocol") {
    them.say(ucx::greeting_id, ucx::greeting{.magic = 1});
  }
  const auto start = std::chrono::steady_clock::now();
  while (nodes.server.wire->stats().bad_frames == 0 &&
         std::chrono::steady_clock::now() - start < bound) {
    them.say(ucx::frame_id, "unheard", 7, {});  // before it is a peer
  }
  CHECK(nodes.server.wire->stats().bad_frames == 1);
  CHECK(nodes.server.wire->stats().peers == 1);
  CHECK(nodes.server.ups.stays_empty(10ms));
}

}  // namespace troupe::messages::testing
