// The handshake of two peers and the seals of a session: no wire, no clock.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "messages/frame.hpp"
#include "messages/link/cluster_secret.hpp"
#include "messages/link/wire/session.hpp"

namespace troupe::messages {
namespace {

using role = handshake::role;
using message = ucx::handshake_message;

std::span<const std::byte> bytes_of(const message& what) {
  return std::as_bytes(std::span(&what, 1));
}
std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

handshake::nonce fresh() {
  handshake::nonce out;
  fill_random(out);
  return out;
}

/// A handshake under way, and all that was said in it, in order.
struct meeting {
  explicit meeting(const std::string& secret = "the same for both", const std::string& other = "")
      : connecting(role::connects, bytes_of(secret), fresh()),
        accepting(role::accepts, bytes_of(other.empty() ? secret : other), fresh()),
        said{connecting.hello()} {}

  /// Hands over the last message; says why it was refused, if it was.
  std::optional<refusal> next() {
    handshake& to = said.size() % 2 == 1 ? accepting : connecting;
    const auto answer = to.take(bytes_of(said.back()));
    if (!answer) return answer.error();
    if (*answer) said.push_back(**answer);
    return std::nullopt;
  }

  void finish() {
    for (int i = 0; i < 5; ++i) REQUIRE(next() == std::nullopt);
  }

  handshake connecting;
  handshake accepting;
  std::vector<message> said;
};

refusal refused(handshake& by, std::span<const std::byte> what) {
  const auto answer = by.take(what);
  REQUIRE_FALSE(answer);
  return answer.error();
}
refusal refused(handshake& by, const message& what) {
  return refused(by, bytes_of(what));
}

}  // namespace

TEST_CASE("two that share a secret admit each other in five messages") {
  meeting two;
  CHECK_FALSE(two.connecting.admitted());
  REQUIRE(two.next() == std::nullopt);
  CHECK_FALSE(two.accepting.admitted());
  REQUIRE(two.next() == std::nullopt);
  CHECK_FALSE(two.connecting.admitted());
  REQUIRE(two.next() == std::nullopt);
  CHECK(two.accepting.admitted());
  CHECK_FALSE(two.accepting.done());
  REQUIRE(two.next() == std::nullopt);
  CHECK(two.connecting.done());
  REQUIRE(two.next() == std::nullopt);
  CHECK(two.accepting.done());
  CHECK(two.said.size() == 5);
  CHECK(two.connecting.keys().id() == two.accepting.keys().id());
}

TEST_CASE("the empty secret is shared by all who have none") {
  handshake connecting(role::connects, {}, fresh());
  handshake accepting(role::accepts, {}, fresh());
  const auto challenge = accepting.take(bytes_of(connecting.hello()));
  const auto proof = connecting.take(bytes_of(**challenge));
  REQUIRE(accepting.take(bytes_of(**proof)));
  CHECK(accepting.admitted());
}

TEST_CASE("another secret is refused before ours is used for anything the stranger sees") {
  meeting two("ours", "theirs");
  REQUIRE(two.next() == std::nullopt);
  const message& challenge = two.said.back();
  CHECK(std::ranges::all_of(challenge.proof, [](auto byte) { return byte == 0; }));
  REQUIRE(two.next() == std::nullopt);
  CHECK(two.next() == refusal::wrong_secret);
  CHECK_FALSE(two.accepting.admitted());
}

TEST_CASE("a side that cannot prove itself is not welcomed by the one that connected") {
  meeting two;
  for (int i = 0; i < 3; ++i) REQUIRE(two.next() == std::nullopt);
  two.said.back().proof[31] ^= 1;
  CHECK(two.next() == refusal::wrong_secret);
  CHECK_FALSE(two.connecting.admitted());
}

TEST_CASE("a recorded handshake cannot be played again") {
  meeting recorded;
  recorded.finish();
  const std::string secret = "the same for both";
  SECTION("to who accepts") {
    handshake accepting(role::accepts, bytes_of(secret), fresh());
    REQUIRE(accepting.take(bytes_of(recorded.said[0])));
    CHECK(refused(accepting, recorded.said[2]) == refusal::wrong_secret);
  }
  SECTION("to who connects") {
    handshake connecting(role::connects, bytes_of(secret), fresh());
    REQUIRE(connecting.take(bytes_of(recorded.said[1])));
    CHECK(refused(connecting, recorded.said[3]) == refusal::wrong_secret);
  }
}

TEST_CASE("what we say cannot be sent back to us") {
  meeting two;
  SECTION("our nonce") {
    message mirrored = two.connecting.hello();
    mirrored.kind = static_cast<std::uint8_t>(ucx::handshake_kind::challenge);
    CHECK(refused(two.connecting, mirrored) == refusal::reflected);
  }
  SECTION("our proof") {
    REQUIRE(two.next() == std::nullopt);
    REQUIRE(two.next() == std::nullopt);
    message mirrored = two.said.back();
    mirrored.kind = static_cast<std::uint8_t>(ucx::handshake_kind::welcome);
    CHECK(refused(two.connecting, mirrored) == refusal::reflected);
  }
}

TEST_CASE("a proof is bound to role, nonces and versions") {
  // Somebody in the middle of two handshakes of the same cluster can move no proof between them.
  meeting one;
  meeting other;
  for (int i = 0; i < 2; ++i) REQUIRE(one.next() == std::nullopt);
  for (int i = 0; i < 2; ++i) REQUIRE(other.next() == std::nullopt);
  CHECK(refused(other.accepting, one.said[2]) == refusal::wrong_secret);
  message as_ready = one.said[2];
  as_ready.kind = static_cast<std::uint8_t>(ucx::handshake_kind::welcome);
  CHECK(refused(one.connecting, as_ready) == refusal::reflected);
}

TEST_CASE("messages that are not due are refused") {
  meeting whole;
  whole.finish();
  // At each step of each side, all messages but the one that is due.
  for (std::size_t heard = 0; heard < 5; ++heard) {
    for (std::size_t kind = 1; kind <= 5; ++kind) {
      meeting two;
      for (std::size_t i = 0; i < heard; ++i) REQUIRE(two.next() == std::nullopt);
      handshake& to = heard % 2 == 0 ? two.accepting : two.connecting;
      if (kind == heard + 1) continue;
      CAPTURE(heard, kind);
      CHECK(refused(to, whole.said[kind - 1]) == refusal::out_of_order);
    }
  }
  whole.accepting.confirm();
  CHECK(refused(whole.accepting, whole.said[4]) == refusal::out_of_order);
}

TEST_CASE("a first sealed message may stand for one ready that comes after it") {
  meeting two;
  for (int i = 0; i < 4; ++i) REQUIRE(two.next() == std::nullopt);
  two.accepting.confirm();
  CHECK(two.accepting.done());
  CHECK(two.accepting.take(bytes_of(two.said.back())));
  CHECK(refused(two.accepting, two.said.back()) == refusal::out_of_order);
}

TEST_CASE("handshakes of others are refused by name") {
  meeting two;
  message hello = two.said.back();
  SECTION("another protocol") {
    hello.magic = 0x20544547;
    CHECK(refused(two.accepting, hello) == refusal::malformed);
  }
  SECTION("another size") {
    CHECK(refused(two.accepting, bytes_of(hello).first(79)) == refusal::malformed);
    CHECK(refused(two.accepting, std::span<const std::byte>()) == refusal::malformed);
  }
  SECTION("another kind") {
    hello.kind = 9;
    CHECK(refused(two.accepting, hello) == refusal::malformed);
  }
  SECTION("another wire") {
    hello.wire += 1;
    CHECK(refused(two.accepting, hello) == refusal::version);
  }
  SECTION("another version") {
    hello.protocol += 1;
    CHECK(refused(two.accepting, hello) == refusal::version);
  }
  SECTION("a refusal says why") {
    CHECK(refused(two.accepting, handshake::refuse(refusal::version)) == refusal::by_peer);
    CHECK(two.accepting.their_reason() == refusal::version);
  }
  SECTION("a refusal for no known reason") {
    message no = handshake::refuse(refusal::version);
    no.reason = 200;
    CHECK(refused(two.accepting, no) == refusal::by_peer);
    CHECK(two.accepting.their_reason() == std::nullopt);
  }
}

TEST_CASE("a seal holds for its session, direction, prefix and header only") {
  meeting two;
  two.finish();
  meeting other;
  other.finish();
  session& from = two.connecting.keys();
  session& to = two.accepting.keys();
  const std::string header(208, 'h');
  ucx::frame_prefix prefix{.header_bytes = 208, .sequence = 7};
  from.sign(prefix, bytes_of(header));
  CHECK(prefix.seal.session == to.id());
  CHECK(to.verify(prefix, bytes_of(header)));

  CHECK_FALSE(from.verify(prefix, bytes_of(header)));  // sent back
  CHECK_FALSE(other.accepting.keys().verify(prefix, bytes_of(header)));
  for (std::size_t i = 0; i < sizeof(prefix); ++i) {
    ucx::frame_prefix spoiled = prefix;
    reinterpret_cast<unsigned char*>(&spoiled)[i] ^= 0x10;
    CAPTURE(i);
    CHECK_FALSE(to.verify(spoiled, bytes_of(header)));
  }
  for (std::size_t i = 0; i < header.size(); ++i) {
    std::string spoiled = header;
    spoiled[i] = 'x';
    CHECK_FALSE(to.verify(prefix, bytes_of(spoiled)));
  }
  CHECK_FALSE(to.verify(prefix, bytes_of(header).first(207)));
  to.sign(prefix, bytes_of(header));
  CHECK(from.verify(prefix, bytes_of(header)));
}

TEST_CASE("every refusal has its own name and sentence") {
  std::set<std::string_view> names;
  std::set<std::string_view> sentences;
  for (std::size_t i = 0; i < refusal_kinds; ++i) {
    names.insert(name_of(static_cast<refusal>(i)));
    sentences.insert(describe(static_cast<refusal>(i)));
  }
  CHECK(names.size() == refusal_kinds);
  CHECK(sentences.size() == refusal_kinds);
  CHECK_FALSE(names.contains("unknown"));
}

TEST_CASE("a secret is shared by its copies and random ones differ") {
  const cluster_secret one = cluster_secret::random();
  const cluster_secret copy = one;
  CHECK(copy.bytes().data() == one.bytes().data());
  CHECK(one.bytes().size() >= cluster_secret::least_bytes);
  CHECK_FALSE(std::ranges::equal(one.bytes(), cluster_secret::random().bytes()));
  CHECK(cluster_secret().empty());
  CHECK(cluster_secret(std::span<const std::byte>()).empty());
}

}  // namespace troupe::messages
