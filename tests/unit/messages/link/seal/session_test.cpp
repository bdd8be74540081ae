// The handshake of two peers and the seals of a session: no wire, no clock.
#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "messages/frame.hpp"
#include "messages/link/cluster_secret.hpp"
#include "messages/link/seal/handshake.hpp"
#include "messages/link/seal/session.hpp"

namespace troupe::messages {
namespace {

using role = handshake::role;
using message = wire::handshake_message;
using wire::cipher_kind;

std::span<const std::byte> bytes_of(const message& what) {
  return std::as_bytes(std::span(&what, 1));
}
std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

key_share fresh(const std::string& secret) {
  std::array<std::byte, 64> random;
  fill_random(random);
  key_share out = key_share::make(bytes_of(secret), random);
  fill_random(out.salt);
  return out;
}

/// The same share, shown to another.
key_share again(const key_share& share) {
  key_share out = share;
  fill_random(out.salt);
  return out;
}

/// A handshake under way, and all that was said in it, in order.
struct meeting {
  explicit meeting(const std::string& secret = "the same for both", const std::string& other = "")
      : meeting(fresh(secret), fresh(other.empty() ? secret : other)) {}
  meeting(const key_share& one, const key_share& other,
          cipher_kind ones = cipher_kind::chacha20_poly1305,
          cipher_kind others = cipher_kind::chacha20_poly1305)
      : connecting(role::connects, one, ones),
        accepting(role::accepts, other, others),
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
    for (int i = 0; i < 4; ++i) REQUIRE(next() == std::nullopt);
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

/// The sealing half of a connection.
session session_of(const connection_keys& keys) {
  return {keys.session, keys.signing, keys.verifying};
}

}  // namespace

TEST_CASE("two that share a secret admit each other in four messages") {
  meeting two;
  CHECK_FALSE(two.accepting.answered());
  REQUIRE(two.next() == std::nullopt);
  CHECK(two.accepting.answered());
  CHECK_FALSE(two.accepting.done());
  REQUIRE(two.next() == std::nullopt);
  CHECK_FALSE(two.connecting.done());
  REQUIRE(two.next() == std::nullopt);
  CHECK(two.accepting.done());
  CHECK_FALSE(two.connecting.done());
  REQUIRE(two.next() == std::nullopt);
  CHECK(two.connecting.done());
  CHECK(two.said.size() == 4);
}

TEST_CASE("both sides of a connection have the same keys, one for each direction and use") {
  meeting two;
  two.finish();
  const connection_keys& one = two.connecting.keys();
  const connection_keys& other = two.accepting.keys();
  CHECK(one.session == other.session);
  CHECK(one.sending == other.receiving);
  CHECK(one.receiving == other.sending);
  CHECK(one.signing == other.verifying);
  CHECK(one.verifying == other.signing);
  CHECK(one.sending != one.receiving);
  CHECK(one.signing != one.verifying);
  CHECK(std::memcmp(one.sending.data(), one.signing.data(), one.signing.size()) != 0);
}

TEST_CASE("no two connections have the same keys, though a share is shown twice") {
  const std::string secret = "the same for both";
  const key_share connecting = fresh(secret);
  const key_share accepting = fresh(secret);
  meeting first(connecting, accepting);
  meeting second(connecting, again(accepting));
  first.finish();
  second.finish();
  CHECK(std::memcmp(first.said[1].share, second.said[1].share, sizeof(first.said[1].share)) == 0);
  CHECK(first.accepting.keys().session != second.accepting.keys().session);
  CHECK(first.accepting.keys().sending != second.accepting.keys().sending);
  CHECK(first.accepting.keys().receiving != second.accepting.keys().receiving);
  CHECK(first.accepting.keys().signing != second.accepting.keys().signing);
}

TEST_CASE("a connection has the cipher that is the faster one on both sides") {
  const std::string secret = "the same for both";
  const cipher_kind one = GENERATE(cipher_kind::chacha20_poly1305, cipher_kind::aes_256_gcm);
  const cipher_kind other = GENERATE(cipher_kind::chacha20_poly1305, cipher_kind::aes_256_gcm);
  meeting two(fresh(secret), fresh(secret), one, other);
  two.finish();
  const cipher_kind agreed = one == other ? one : cipher_kind::chacha20_poly1305;
  CHECK(two.connecting.keys().cipher == agreed);
  CHECK(two.accepting.keys().cipher == agreed);
}

TEST_CASE("nobody between two sides can choose their cipher") {
  const std::string secret = "the same for both";
  meeting two(fresh(secret), fresh(secret), cipher_kind::aes_256_gcm, cipher_kind::aes_256_gcm);
  SECTION("in the hello") {
    two.said.back().cipher = 0;
    REQUIRE(two.next() == std::nullopt);
  }
  SECTION("in the challenge") {
    REQUIRE(two.next() == std::nullopt);
    two.said.back().cipher = 0;
  }
  REQUIRE(two.next() == std::nullopt);
  CHECK(two.next() == refusal::wrong_secret);
}

TEST_CASE("the empty secret is shared by all who have none") {
  meeting two(fresh(""), fresh(""));
  two.finish();
  CHECK(two.accepting.done());
  CHECK(two.connecting.done());
}

TEST_CASE("another secret is refused before ours is used for anything the stranger can try") {
  meeting two("ours", "theirs");
  REQUIRE(two.next() == std::nullopt);
  REQUIRE(two.next() == std::nullopt);
  CHECK(two.next() == refusal::wrong_secret);
  CHECK(two.said.size() == 3);  // no proof went to the side that has proved nothing
  CHECK_FALSE(two.accepting.done());
}

TEST_CASE("a secret that another begins with is another secret") {
  meeting two("secret", "secret and more");
  REQUIRE(two.next() == std::nullopt);
  REQUIRE(two.next() == std::nullopt);
  CHECK(two.next() == refusal::wrong_secret);
}

TEST_CASE("a side that cannot prove itself is not welcomed by the one that connected") {
  meeting two;
  for (int i = 0; i < 3; ++i) REQUIRE(two.next() == std::nullopt);
  two.said.back().proof[31] ^= 1;
  CHECK(two.next() == refusal::wrong_secret);
  CHECK_FALSE(two.connecting.done());
}

TEST_CASE("a recorded handshake cannot be played again") {
  const std::string secret = "the same for both";
  const key_share shown = fresh(secret);
  meeting recorded(fresh(secret), shown);
  recorded.finish();
  SECTION("to who accepts") {
    handshake accepting(role::accepts, fresh(secret));
    REQUIRE(accepting.take(bytes_of(recorded.said[0])));
    CHECK(refused(accepting, recorded.said[2]) == refusal::wrong_secret);
  }
  SECTION("to who accepts and still shows the same share") {
    handshake accepting(role::accepts, again(shown));
    REQUIRE(accepting.take(bytes_of(recorded.said[0])));
    CHECK(refused(accepting, recorded.said[2]) == refusal::wrong_secret);
  }
  SECTION("to who connects") {
    handshake connecting(role::connects, fresh(secret));
    REQUIRE(connecting.take(bytes_of(recorded.said[1])));
    CHECK(refused(connecting, recorded.said[3]) == refusal::wrong_secret);
  }
}

TEST_CASE("what we say cannot be sent back to us") {
  meeting two;
  SECTION("our share, when we connect") {
    message mirrored = two.connecting.hello();
    mirrored.kind = static_cast<std::uint8_t>(wire::handshake_kind::challenge);
    CHECK(refused(two.connecting, mirrored) == refusal::reflected);
  }
  SECTION("our share, when we accept") {
    REQUIRE(two.next() == std::nullopt);
    message mirrored = two.said.back();
    mirrored.kind = static_cast<std::uint8_t>(wire::handshake_kind::hello);
    const std::string secret = "the same for both";
    key_share same = fresh(secret);
    std::memcpy(same.shown.data(), mirrored.share, same.shown.size());
    handshake accepting(role::accepts, same);
    CHECK(refused(accepting, mirrored) == refusal::reflected);
  }
  SECTION("our proof") {
    REQUIRE(two.next() == std::nullopt);
    REQUIRE(two.next() == std::nullopt);
    message mirrored = two.said.back();
    mirrored.kind = static_cast<std::uint8_t>(wire::handshake_kind::welcome);
    CHECK(refused(two.connecting, mirrored) == refusal::reflected);
  }
}

TEST_CASE("a share that is no point, or the one that makes every secret right, is refused") {
  std::array<std::uint8_t, 32> share{};
  SECTION("zero, the neutral one") {}
  SECTION("no point") share.fill(0xFF);
  SECTION("a point written in another way") {
    share[0] = 1;  // negative: not its canonical form
  }
  meeting two;
  SECTION("of who connects") {
    message hello = two.said.back();
    std::memcpy(hello.share, share.data(), share.size());
    REQUIRE(two.accepting.take(bytes_of(hello)));
    message proof = hello;
    proof.kind = static_cast<std::uint8_t>(wire::handshake_kind::proof);
    CHECK(refused(two.accepting, proof) == refusal::malformed);
    CHECK_FALSE(two.accepting.done());
  }
  SECTION("of who accepts") {
    REQUIRE(two.next() == std::nullopt);
    std::memcpy(two.said.back().share, share.data(), share.size());
    CHECK(two.next() == refusal::malformed);
    CHECK_FALSE(two.connecting.done());
  }
}

TEST_CASE("a side whose number is zero gets nowhere") {
  const std::array<std::byte, 64> zero{};
  const std::string secret = "the same for both";
  meeting two(key_share::make(bytes_of(secret), zero), fresh(secret));
  REQUIRE(two.next() == std::nullopt);
  CHECK(refused(two.connecting, two.said.back()) == refusal::malformed);
}

TEST_CASE("a proof is bound to role, shares, salt and versions") {
  // Somebody in the middle of two handshakes of the same cluster can move no proof between them.
  meeting one;
  meeting other;
  for (int i = 0; i < 2; ++i) REQUIRE(one.next() == std::nullopt);
  for (int i = 0; i < 2; ++i) REQUIRE(other.next() == std::nullopt);
  CHECK(refused(other.accepting, one.said[2]) == refusal::wrong_secret);
  message as_welcome = one.said[2];
  as_welcome.kind = static_cast<std::uint8_t>(wire::handshake_kind::welcome);
  CHECK(refused(one.connecting, as_welcome) == refusal::reflected);
}

TEST_CASE("a challenge that was changed on its way ends in a refusal") {
  for (std::size_t part : {offsetof(message, share), offsetof(message, proof)}) {
    CAPTURE(part);
    meeting two;
    REQUIRE(two.next() == std::nullopt);
    if (part == offsetof(message, share)) {
      const key_share another = fresh("the same for both");
      std::memcpy(two.said.back().share, another.shown.data(), another.shown.size());
    } else {
      two.said.back().proof[7] ^= 1;
    }
    REQUIRE(two.next() == std::nullopt);
    CHECK(two.next() == refusal::wrong_secret);
  }
}

TEST_CASE("messages that are not due are refused") {
  meeting whole;
  whole.finish();
  // At each step of each side, all messages but the one that is due.
  for (std::size_t heard = 0; heard < 4; ++heard)
    for (std::size_t kind = 1; kind <= 4; ++kind) {
      meeting two;
      for (std::size_t i = 0; i < heard; ++i) REQUIRE(two.next() == std::nullopt);
      handshake& to = heard % 2 == 0 ? two.accepting : two.connecting;
      if (kind == heard + 1) continue;
      CAPTURE(heard, kind);
      CHECK(refused(to, whole.said[kind - 1]) == refusal::out_of_order);
    }
  for (const message& each : whole.said) {
    CHECK(refused(whole.accepting, each) == refusal::out_of_order);
    CHECK(refused(whole.connecting, each) == refusal::out_of_order);
  }
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
  SECTION("another version of who accepts") {
    REQUIRE(two.next() == std::nullopt);
    two.said.back().protocol += 1;
    CHECK(two.next() == refusal::version);
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
  session from = session_of(two.connecting.keys());
  session to = session_of(two.accepting.keys());
  session elsewhere = session_of(other.accepting.keys());
  const std::string header(208, 'h');
  wire::frame_prefix prefix{.header_bytes = 208, .sequence = 7};
  from.sign(prefix, bytes_of(header));
  CHECK(prefix.seal.session == to.id());
  CHECK(to.verify(prefix, bytes_of(header)));

  CHECK_FALSE(from.verify(prefix, bytes_of(header)));  // sent back
  CHECK_FALSE(elsewhere.verify(prefix, bytes_of(header)));
  for (std::size_t i = 0; i < sizeof(prefix); ++i) {
    wire::frame_prefix spoiled = prefix;
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

TEST_CASE("every refusal has its own sentence") {
  std::set<std::string_view> sentences;
  for (std::size_t i = 0; i < refusal_kinds; ++i)
    sentences.insert(describe(static_cast<refusal>(i)));
  CHECK(sentences.size() == refusal_kinds);
  CHECK_FALSE(sentences.contains("was not admitted"));
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
