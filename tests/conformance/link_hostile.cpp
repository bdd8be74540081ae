// What a UCX link does with a peer that speaks UCX but breaks our protocol: it closes that peer's
// connection, counts it, and harms nobody else.
#include <sys/prctl.h>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "another_self.hpp"
#include "link_target.hpp"
#include "stranger.hpp"

namespace troupe::messages::testing {

TEMPLATE_TEST_CASE("a peer that breaks the protocol loses its link and nobody else does", "[link]",
                   tcp_backend, shm_backend) {
  target<TestType> nodes;
  stranger them(transport_of<TestType>, nodes.address);
  them.join();
  const peer_id bad = them.await(nodes.server.ups);

  head one(1);
  them.say_frame(one.prefix, one.data);
  CHECK(number_of(them.await(nodes.server.frames)) == 1);  // so far it behaves
  ucx::frame_prefix prefix = one.prefix;
  prefix.sequence = 1;
  link_stats expected;
  expected.bad_frames = 1;

  SECTION("a prefix of another size") {
    them.say(ucx::frame_id, "short", 5, one.data);
  }
  SECTION("a prefix of another message") {
    prefix.id = ucx::chunk_id;
    them.say_frame(prefix, one.data);
  }
  SECTION("a prefix that nobody sealed") {
    prefix.seal.session = them.keys().id();
    them.say(ucx::frame_id, prefix, one.data);
    expected = {.bad_macs = 1};
  }
  SECTION("a header that was altered") {
    them.keys().sign(prefix, one.data);
    one.data.back() ^= std::byte{1};
    them.say(ucx::frame_id, prefix, one.data);
    expected = {.bad_macs = 1};
  }
  SECTION("a header longer than the message") {
    prefix.header_bytes += 8;
    them.say_frame(prefix, one.data);
  }
  SECTION("a number too far ahead") {
    prefix.sequence = 1 << 30;
    them.say_frame(prefix, one.data);
  }
  SECTION("bytes that do not add up") {
    prefix.inline_bytes = 1;
    them.say_frame(prefix, one.data);
  }
  SECTION("a header that is garbage") {
    them.say_frame(prefix, std::vector<std::byte>(one.data.size(), std::byte{0xA5}));
  }
  SECTION("a header beyond the limit") {
    const std::vector<std::byte> large(limits{}.header_bytes + 8);
    prefix.header_bytes = static_cast<std::uint32_t>(large.size());
    them.say_frame(prefix, large);
  }
  SECTION("a chunk of nothing") {
    ucx::chunk_prefix chunk{.lane = 1, .sequence = 1, .bytes = 8};
    them.keys().sign(chunk);
    them.say(ucx::chunk_id, chunk, bytes_view(one.data).first(8));
  }
  SECTION("a chunk that nobody sealed") {
    ucx::chunk_prefix chunk{.lane = 1, .sequence = 1, .bytes = 8};
    chunk.seal.session = them.keys().id();
    them.say(ucx::chunk_id, chunk, bytes_view(one.data).first(8));
    expected = {.bad_macs = 1};
  }
  SECTION("a frame by rendezvous") {
    them.say(ucx::frame_id, &prefix, sizeof(prefix), one.data, UCP_AM_SEND_FLAG_RNDV);
  }
  SECTION("a bundle that does not add up") {
    bundle_of two(1, {1, 2});
    two.prefix.frames = 3;
    them.say_bundle(two.prefix, two.data);
  }
  SECTION("a bundle that was altered") {
    bundle_of two(1, {1, 2});
    them.keys().sign(two.prefix, two.data);
    two.data.back() ^= std::byte{1};
    them.say(ucx::bundle_id, two.prefix, two.data);
    expected = {.bad_macs = 1};
  }
  SECTION("an unknown message") {
    them.say(77, "?", 1, {});
  }
  SECTION("a message far beyond the known ones") {
    them.say(65535, "?", 1, {});
  }
  SECTION("a second handshake") {
    them.say(them.hello());
  }
  SECTION("a farewell of another size") {
    them.say(ucx::farewell_id, "bye", 3, {});
  }
  SECTION("a farewell that nobody sealed") {
    ucx::farewell bye;
    bye.seal.session = them.keys().id();
    them.say(ucx::farewell_id, bye);
    expected = {.bad_macs = 1};
  }
  const auto [peer, why] = them.await(nodes.server.downs);
  CHECK(peer == bad);
  CHECK(why.code == errc::bad_frame);
  CHECK(nodes.server.wire->stats().bad_frames == expected.bad_frames);
  CHECK(nodes.server.wire->stats().bad_macs == expected.bad_macs);
  nodes.check_others();
}

TEMPLATE_TEST_CASE("what came before or belongs elsewhere is dropped and counted", "[link]",
                   tcp_backend, shm_backend) {
  target<TestType> nodes;
  stranger them(transport_of<TestType>, nodes.address);
  them.join();
  them.await(nodes.server.ups);
  head message(1);
  them.keys().sign(message.prefix, message.data);
  them.say(ucx::frame_id, message.prefix, message.data);
  CHECK(number_of(them.await(nodes.server.frames)) == 1);

  const auto stats = [&] { return nodes.server.wire->stats(); };
  them.say(ucx::frame_id, message.prefix, message.data);  // the same bytes again
  CHECK(them.work_until([&] { return stats().replayed_frames == 1; }));

  // Of a bundle, what is new is taken.
  const bundle_of known_and_new(0, {1, 2});
  them.say_bundle(known_and_new.prefix, known_and_new.data);
  CHECK(number_of(them.await(nodes.server.frames)) == 2);
  CHECK(stats().replayed_frames == 2);

  stranger later(transport_of<TestType>, nodes.address);
  later.join();
  later.await(nodes.server.ups);
  later.say(ucx::frame_id, message.prefix, message.data);  // of another session
  CHECK(later.work_until([&] { return stats().unknown_sessions == 1; }));

  // Both are still peers.
  for (stranger* each : {&them, &later}) {
    head next(3);
    next.prefix.sequence = each == &them ? 2 : 0;
    each->say_frame(next.prefix, next.data);
    CHECK(number_of(each->await(nodes.server.frames)) == 3);
  }
  CHECK(nodes.server.downs.stays_empty(0ms));
}

TEMPLATE_TEST_CASE("a stranger is refused by name and is never a peer", "[link]", tcp_backend,
                   shm_backend) {
  TestType backend;
  backend.options.secret = cluster_secret::random();
  target<TestType> nodes(backend);
  stranger them(transport_of<TestType>, nodes.address);
  refusal expected = refusal::malformed;
  ucx::handshake_message hello = them.hello();
  SECTION("another protocol") {
    hello.magic = 1;
    them.say(hello);
  }
  SECTION("a hello of another size") {
    them.say(ucx::handshake_id, &hello, 11, {});
  }
  SECTION("another version") {
    hello.protocol = 999;
    them.say(hello);
    expected = refusal::version;
  }
  SECTION("another version of the wire") {
    --hello.wire;
    them.say(hello);
    expected = refusal::version;
  }
  SECTION("another secret") {
    them.say(hello);
    them.say(them.answer());
    expected = refusal::wrong_secret;
  }
  SECTION("a proof before the challenge") {
    hello.kind = static_cast<std::uint8_t>(ucx::handshake_kind::proof);
    them.say(hello);
    expected = refusal::out_of_order;
  }
  SECTION("a frame first") {
    const head message(1);
    them.say(ucx::frame_id, message.prefix, message.data);
    expected = refusal::out_of_order;
  }
  SECTION("a chunk first") {
    const std::vector<std::byte> data(1 << 16);
    const ucx::chunk_prefix chunk{.lane = 1, .bytes = data.size()};
    them.say(ucx::chunk_id, &chunk, sizeof(chunk), data);
    expected = refusal::out_of_order;
  }
  SECTION("news of memory first") {
    them.say(ucx::memory_id, ucx::memory_message{.kind = 1});
    expected = refusal::out_of_order;
  }
  SECTION("returns first") {
    them.say(ucx::returns_id, ucx::returns_prefix{});
    expected = refusal::out_of_order;
  }
  SECTION("a farewell first") {
    them.say(ucx::farewell_id, ucx::farewell{});
    expected = refusal::out_of_order;
  }
  SECTION("an unknown message first") {
    them.say(77, "?", 1, {});
    expected = refusal::out_of_order;
  }
  CHECK(them.work_until([&] { return nodes.refused(expected) == 1; }));
  const ucx::handshake_message told = them.hear_one();
  CHECK(told.kind == static_cast<std::uint8_t>(ucx::handshake_kind::refused));
  CHECK(told.reason == static_cast<std::uint8_t>(expected));
  CHECK(nodes.server.wire->stats().bad_frames == 0);
  CHECK(nodes.server.ups.stays_empty(10ms));
  nodes.check_others();
}

TEMPLATE_TEST_CASE("a handshake that was recorded is refused", "[link]", tcp_backend, shm_backend) {
  TestType backend;
  backend.options.secret = cluster_secret::random();
  target<TestType> nodes(backend);
  stranger honest(transport_of<TestType>, nodes.address, backend.options.secret);
  const auto recorded = honest.join();
  honest.await(nodes.server.ups);

  stranger replaying(transport_of<TestType>, nodes.address);
  replaying.say(recorded[0]);
  replaying.hear_one();
  replaying.say(recorded[1]);
  CHECK(replaying.work_until([&] { return nodes.refused(refusal::wrong_secret) == 1; }));
  CHECK(nodes.server.ups.stays_empty(10ms));
}

TEMPLATE_TEST_CASE("links with different secrets refuse each other by name", "[link]", tcp_backend,
                   shm_backend) {
  TestType backend;
  backend.options.secret = cluster_secret::random();
  target<TestType> nodes(backend);
  TestType others;
  SECTION("another secret") {
    others.options.secret = cluster_secret::random();
  }
  SECTION("none") {}
  node<TestType> outsider(others);
  const result<peer_id> peer = outsider.try_connect(nodes.address);
  REQUIRE_FALSE(peer);
  CHECK(peer.error().code == errc::not_admitted);
  CHECK(peer.error().text.find("secret") != std::string::npos);
  CHECK(outsider.wire->stats().refused(refusal::by_peer) == 1);
  CHECK(nodes.refused(refusal::wrong_secret) == 1);
  nodes.check_others();
}

/// Strangers in a process of their own: up to UCX 1.17 a burst of connections that are turned away
/// may end a process that has both ends of them (openucx/ucx#9942).
another_self crowd(link_transport transport, const std::string& address, unsigned many) {
  return {"[.crowd]", "TROUPE_CROWD=" + std::to_string(static_cast<int>(transport)) + " " +
                          address + " " + std::to_string(many)};
}

TEST_CASE("a crowd of strangers", "[.crowd]") {
  const char* const what = std::getenv("TROUPE_CROWD");
  REQUIRE(what != nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::istringstream words(what);
  int transport = 0;
  std::string address;
  unsigned many = 0;
  words >> transport >> address >> many;
  const link_transport over{static_cast<std::uint8_t>(transport)};
  stranger them(over, address);
  them.say(them.hello());  // and goes on no further
  for (unsigned i = 1; i < many; ++i) them.connect(over, address);
  while (true) them.work_until([] { return false; });
}

TEMPLATE_TEST_CASE("handshakes are bounded in number and time", "[link]", tcp_backend,
                   shm_backend) {
  TestType backend;
  backend.options.handshakes = 50;
  backend.options.handshake_timeout = 300ms;
  target<TestType> nodes(backend);
  constexpr unsigned many = 200;
  {
    const another_self them = crowd(transport_of<TestType>, nodes.address, many);
    const auto gone = [&] { return nodes.refused(refusal::too_slow); };
    const auto start = std::chrono::steady_clock::now();
    while (gone() + nodes.refused(refusal::too_many) < many &&
           std::chrono::steady_clock::now() - start < bound)
      std::this_thread::sleep_for(1ms);
    CHECK(gone() + nodes.refused(refusal::too_many) == many);
    CHECK(gone() >= 1);
    CHECK(nodes.refused(refusal::too_many) > 0);
  }
  CHECK(nodes.server.ups.stays_empty(0ms));
  nodes.check_others();
  node<TestType> late(nodes.backend);  // there is room again
  CHECK(late.try_connect(nodes.address));
}

TEST_CASE("links keep to loopback addresses unless they have a secret", "[link]") {
  const auto refused = make_link({.beyond_loopback = true}, {});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::bad_config);
  tcp_backend backend;
  node<tcp_backend> here(backend);
  for (const char* address : {"0.0.0.0:0", "192.0.2.1:0", "[::]:0"}) {
    const auto listening = here.wire->listen(address);
    REQUIRE_FALSE(listening);
    CHECK(listening.error().code == errc::address_unavailable);
    CHECK(listening.error().text.find("loopback") != std::string::npos);
  }
  const auto peer = here.try_connect("192.0.2.1:7");
  REQUIRE_FALSE(peer);
  CHECK(peer.error().text.find("loopback") != std::string::npos);
}

}  // namespace troupe::messages::testing
