// What a link does with whoever comes to its door and does not prove that it belongs there.
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "lent.hpp"
#include "link_target.hpp"
#include "said.hpp"
#include "stranger.hpp"
#include "tests/refusal.hpp"

namespace troupe::messages::testing {
namespace {

using kind = wire::handshake_kind;

wire::handshake_message as(wire::handshake_message message, kind what) {
  message.kind = static_cast<std::uint8_t>(what);
  return message;
}

template <class Backend>
Backend with_secret() {
  Backend out;
  out.options.secret = cluster_secret::random();
  return out;
}

/// A stranger at the door of a link with a secret that it does not know.
template <class Backend>
struct visit {
  void challenge_after(const wire::handshake_message& first) {
    them.say(first);
    CHECK(them.hear_one().kind == static_cast<std::uint8_t>(kind::challenge));
  }

  void is_refused() {
    CHECK(them.work_until([&] { return nodes.refused(expected) == 1; }));
    const wire::handshake_message told = them.hear_one();
    CHECK(told.kind == static_cast<std::uint8_t>(kind::refused));
    CHECK(told.reason == static_cast<std::uint8_t>(expected));
    CHECK(them.work_until([&] { return them.is_over(); }));
    CHECK(nodes.server.wire->stats().bad_frames == 0);
    CHECK(nodes.server.wire->stats().bad_macs == 0);
    CHECK(nodes.server.ups.stays_empty(10ms));
    nodes.check_others();
  }

  target<Backend> nodes{with_secret<Backend>()};
  stranger them{transport_of<Backend>, nodes.address};
  wire::handshake_message hello = them.hello();
  refusal expected = refusal::malformed;
  std::vector<std::byte> record = std::vector<std::byte>(100, std::byte{1});
};

}  // namespace

TEMPLATE_TEST_CASE("a stranger is refused by name before anything else is looked at", "[link]",
                   tcp_backend, shm_backend) {
  visit<TestType> at;
  stranger& them = at.them;
  SECTION("another protocol") {
    const std::string text = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";
    them.say_bytes(std::as_bytes(std::span(text)));
  }
  SECTION("another protocol, in as many bytes") {
    at.hello.magic = 1;
    them.say(at.hello);
  }
  SECTION("another kind") them.say(as(at.hello, kind{9}));
  SECTION("another version") {
    at.hello.protocol = 999;
    them.say(at.hello);
    at.expected = refusal::version;
  }
  SECTION("another version of the wire") {
    --at.hello.wire;
    them.say(at.hello);
    at.expected = refusal::version;
  }
  SECTION("a frame first") {
    const head message(1);
    them.say_bytes(bytes_of(message.prefix));
  }
  SECTION("a record first") them.say_bytes(at.record);
  at.is_refused();
}

TEMPLATE_TEST_CASE("a stranger without the secret, or out of order, is refused by name", "[link]",
                   tcp_backend, shm_backend) {
  visit<TestType> at;
  stranger& them = at.them;
  SECTION("another secret") {
    them.say(at.hello);
    them.say(them.answer());
    at.expected = refusal::wrong_secret;
  }
  SECTION("a proof before the challenge") {
    them.say(as(at.hello, kind::proof));
    at.expected = refusal::out_of_order;
  }
  SECTION("a challenge") {
    them.say(as(at.hello, kind::challenge));
    at.expected = refusal::out_of_order;
  }
  SECTION("a second hello") {
    at.challenge_after(at.hello);
    them.say(at.hello);
    at.expected = refusal::out_of_order;
  }
  SECTION("a share of zero") {
    std::memset(at.hello.share, 0, sizeof(at.hello.share));
    at.challenge_after(at.hello);
    them.say(as(at.hello, kind::proof));
  }
  SECTION("a share that is no point") {
    std::memset(at.hello.share, 0xFF, sizeof(at.hello.share));
    at.challenge_after(at.hello);
    them.say(as(at.hello, kind::proof));
  }
  SECTION("a record in place of the proof") {
    at.challenge_after(at.hello);
    them.say_bytes(at.record);
  }
  at.is_refused();
}

TEMPLATE_TEST_CASE("a stranger that shows us our own share is refused by name", "[link]",
                   tcp_backend, shm_backend) {
  target<TestType> nodes(with_secret<TestType>());
  // The share is another one now and then.
  CHECK(comes_true([&] {
    stranger first(transport_of<TestType>, nodes.address);
    stranger second(transport_of<TestType>, nodes.address);
    wire::handshake_message hello = first.hello();
    first.say(hello);
    const wire::handshake_message shown = first.hear_one();
    std::memcpy(hello.share, shown.share, sizeof(hello.share));
    second.say(hello);
    const wire::handshake_message told = second.hear_one();
    return told.kind == static_cast<std::uint8_t>(kind::refused) &&
           told.reason == static_cast<std::uint8_t>(refusal::reflected);
  }));
  CHECK(nodes.refused(refusal::reflected) == 1);
}

TEMPLATE_TEST_CASE("a stranger that refuses us is let go", "[link]", tcp_backend, shm_backend) {
  target<TestType> nodes(with_secret<TestType>());
  stranger them(transport_of<TestType>, nodes.address);
  them.say(handshake::refuse(refusal::version));
  CHECK(them.work_until([&] { return them.is_over(); }));
  CHECK(nodes.refused(refusal::by_peer) == 1);
  nodes.check_others();
}

TEMPLATE_TEST_CASE("whoever only tries the way is let go at once, unanswered", "[link]",
                   tcp_backend, shm_backend) {
  target<TestType> nodes(with_secret<TestType>());
  stranger them(transport_of<TestType>, nodes.address);
  const std::vector<std::uint32_t> knock((64 << 10) / sizeof(wire::knock_magic), wire::knock_magic);
  const auto bytes = std::as_bytes(std::span(knock));
  SECTION("with many bytes") them.say_bytes(bytes);
  SECTION("with few") them.say_bytes(bytes.first(7));
  SECTION("behind a hello") {
    them.say(them.hello());
    CHECK(them.hear_one().kind == static_cast<std::uint8_t>(kind::challenge));
    them.say_bytes(bytes);
  }
  CHECK(them.work_until([&] { return them.is_over(); }));
  CHECK(nodes.refused(refusal::malformed) == 0);
  CHECK(nodes.server.ups.stays_empty(0ms));
  nodes.check_others();
}

TEMPLATE_TEST_CASE("a stranger that stops on its way is cut off in time", "[link]", tcp_backend,
                   shm_backend) {
  auto backend = with_secret<TestType>();
  backend.options.handshake_timeout = 200ms;
  target<TestType> nodes(backend);
  stranger them(transport_of<TestType>, nodes.address, backend.options.secret);
  const wire::handshake_message hello = them.hello();
  SECTION("before its first byte") {}
  SECTION("after its first byte") them.say_bytes(bytes_of(hello).first(1));
  SECTION("one byte before the end of its hello") {
    them.say_bytes(bytes_of(hello).first(sizeof(hello) - 1));
  }
  SECTION("after its hello") {
    them.say(hello);
    them.hear_one();
  }
  SECTION("when it has proved itself and not said where it is") them.prove();
  CHECK(them.work_until([&] { return nodes.refused(refusal::too_slow) == 1; }));
  CHECK(them.work_until([&] { return them.is_over(); }));
  CHECK(nodes.server.ups.stays_empty(0ms));
  nodes.check_others();
}

TEMPLATE_TEST_CASE("a handshake may come byte by byte", "[link]", tcp_backend, shm_backend) {
  target<TestType> nodes;
  stranger them(transport_of<TestType>, nodes.address);
  const wire::handshake_message hello = them.hello();
  for (std::size_t i = 0; i < sizeof(hello); ++i) them.say_bytes(bytes_of(hello).subspan(i, 1));
  CHECK(them.answer().kind == static_cast<std::uint8_t>(kind::proof));
}

TEMPLATE_TEST_CASE("a handshake that was recorded is refused", "[link]", tcp_backend, shm_backend) {
  auto backend = with_secret<TestType>();
  target<TestType> nodes(backend);
  stranger honest(transport_of<TestType>, nodes.address, backend.options.secret);
  const auto recorded = honest.join();
  honest.await(nodes.server.ups);

  // At once, so that our share is still shown.
  stranger replaying(transport_of<TestType>, nodes.address);
  replaying.say(recorded[0]);
  const wire::handshake_message challenge = replaying.hear_one();
  CHECK(challenge.kind == static_cast<std::uint8_t>(kind::challenge));
  replaying.say(recorded[1]);
  CHECK(replaying.work_until([&] { return nodes.refused(refusal::wrong_secret) == 1; }));
  CHECK(nodes.server.ups.stays_empty(10ms));
}

TEMPLATE_TEST_CASE("links with different secrets refuse each other by name", "[link]", tcp_backend,
                   shm_backend) {
  auto backend = with_secret<TestType>();
  TestType others;
  SECTION("another secret") others.options.secret = cluster_secret::random();
  SECTION("none, and the one that listens has one") {}
  SECTION("one, and the one that listens has none") std::swap(backend, others);
  target<TestType> nodes(backend);
  node<TestType> outsider(others);
  check_refused(outsider.try_connect(nodes.address), errc::not_admitted, "secret");
  CHECK(outsider.wire->stats().refused(refusal::by_peer) == 1);
  CHECK(nodes.refused(refusal::wrong_secret) == 1);
  nodes.check_others();
}

TEST_CASE("a peer over shared memory whose address is none is let go", "[link]") {
  target<shm_backend> nodes;
  stranger them(link_transport::shm, nodes.address);
  them.prove();
  SECTION("an empty one") them.say_address({});
  SECTION("less than a sample") {
    them.say_address(std::vector<std::byte>(ucx_side::sample_bytes - 1));
  }
  SECTION("one beyond the limit") {
    them.say_address(std::vector<std::byte>(wire::most_address_bytes + 1));
  }
  CHECK(them.work_until([&] { return them.is_over(); }));
  CHECK(nodes.server.ups.stays_empty(0ms));
  nodes.check_others();
}

TEST_CASE("a peer over shared memory whose second address is none is let go", "[link]") {
  target<shm_backend> nodes;
  stranger them(link_transport::shm, nodes.address);
  them.prove();
  const std::vector<std::byte> sample(ucx_side::sample_bytes);
  them.say_address(sample);  // enough for a peer that says little
  const peer_id peer = them.await(nodes.server.ups);
  SECTION("an empty one") them.say_address({});
  SECTION("the sample again") them.say_address(sample);
  const auto [gone, why] = them.await(nodes.server.downs);
  CHECK(gone == peer);
  CHECK(why.code == errc::peer_lost);
  nodes.check_others();
}

TEST_CASE("links keep to loopback addresses unless they have a secret", "[link]") {
  CHECK(error_of(make_link({.beyond_loopback = true}, {})).code == errc::bad_config);
  tcp_backend backend;
  node<tcp_backend> here(backend);
  for (const char* address : {"0.0.0.0:0", "192.0.2.1:0", "[::]:0"})
    check_refused(here.wire->listen(address), errc::address_unavailable, "loopback");
  CHECK(error_of(here.try_connect("192.0.2.1:7")).text.find("loopback") != std::string::npos);
}

}  // namespace troupe::messages::testing
