// What a link does when it connects to somebody who is not what it takes it for.
#include <unistd.h>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "link_target.hpp"
#include "messages/link/door/listener.hpp"
#include "stranger.hpp"
#include "tests/refusal.hpp"

namespace troupe::messages::testing {
namespace {

using kind = wire::handshake_kind;

/// Somebody who listens where a link connects to, and the link.
template <class Backend>
struct false_listener {
  explicit false_listener(Backend with = {}) : backend(std::move(with)) {}

  /// Has the link connect and takes it in.
  stranger& meet(std::chrono::milliseconds timeout = 5s) {
    here.wire->connect(at.text(), timeout, [this](result<peer_id> how) { outcome.put(how); });
    return next();
  }

  /// Takes in the next connection of this process. Whoever makes a socket in the same folder may
  /// look whether somebody still listens at another one: a process of another PID namespace, as
  /// tests of hosts have them, does so here.
  stranger& next() {
    std::optional<door::visitor> visitor;
    do {
      pollfd ready{at.fd(), POLLIN, 0};
      REQUIRE(::poll(&ready, 1, 20'000) == 1);
      visitor = at.accept();
      REQUIRE(visitor);
    } while (transport_of<Backend> == link_transport::shm &&
             visitor->process != static_cast<std::uint64_t>(::getpid()));
    them =
        std::make_unique<stranger>(transport_of<Backend>, plain_socket(std::move(visitor->socket)),
                                   handshake::role::accepts, backend.options.secret);
    return *them;
  }

  /// How the attempt to connect ended.
  error end() {
    const error how = error_of(them->await(outcome));
    CHECK(how.text.find('\n') == std::string::npos);
    CAPTURE(how.text);
    CHECK(here.wire->stats().peers == 0);
    return how;
  }

  /// The attempt ended with that refusal, by the link or by the listener.
  void is_refused(refusal why, const std::string& words, errc code = errc::not_admitted) {
    const error ended = end();
    CHECK(ended.code == code);
    CHECK(ended.text.find(words) != std::string::npos);
    CHECK(here.wire->stats().refused(why) == 1);
  }

  static door::listener open() {
    if (transport_of<Backend> == link_transport::shm)
      return std::move(door::listener::open_private().value());
    const door::address any = door::resolve(":0", true).value();
    return std::move(door::listener::open(any, "any").value());
  }

  Backend backend;
  door::listener at = open();
  mailbox<result<peer_id>> outcome;
  node<Backend> here{backend};
  std::unique_ptr<stranger> them;
};

}  // namespace

TEMPLATE_TEST_CASE("a link refuses a listener that speaks another protocol by name", "[link]",
                   tcp_backend, shm_backend) {
  false_listener<TestType> place;
  stranger& them = place.meet();
  const wire::handshake_message hello = them.hear_one();
  wire::handshake_message challenge = them.take(hello).value();
  SECTION("another protocol") {
    const std::string text = "SSH-2.0-OpenSSH_9.6\r\n";
    them.say_bytes(std::as_bytes(std::span(text)));
    place.is_refused(refusal::malformed, "does not speak");
  }
  SECTION("another version") {
    ++challenge.protocol;
    them.say(challenge);
    place.is_refused(refusal::version, "another version", errc::version_mismatch);
  }
  SECTION("another version of the wire") {
    ++challenge.wire;
    them.say(challenge);
    place.is_refused(refusal::version, "another version", errc::version_mismatch);
  }
  SECTION("a share of zero") {
    std::memset(challenge.share, 0, sizeof(challenge.share));
    them.say(challenge);
    place.is_refused(refusal::malformed, "does not speak");
  }
  SECTION("a share that is no point") {
    std::memset(challenge.share, 0xFF, sizeof(challenge.share));
    them.say(challenge);
    place.is_refused(refusal::malformed, "does not speak");
  }
}

TEMPLATE_TEST_CASE("a link refuses a listener without the secret by name", "[link]", tcp_backend,
                   shm_backend) {
  false_listener<TestType> place;
  stranger& them = place.meet();
  const wire::handshake_message hello = them.hear_one();
  wire::handshake_message challenge = them.take(hello).value();
  SECTION("our own share") {
    std::memcpy(challenge.share, hello.share, sizeof(challenge.share));
    them.say(challenge);
    place.is_refused(refusal::reflected, "own proof");
  }
  SECTION("our own hello") {
    them.say(hello);
    place.is_refused(refusal::out_of_order, "before its handshake was done");
  }
  SECTION("our own proof") {
    them.say(challenge);
    wire::handshake_message proof = them.hear_one();
    proof.kind = static_cast<std::uint8_t>(kind::welcome);
    them.say(proof);
    place.is_refused(refusal::reflected, "own proof");
  }
  SECTION("a welcome without the secret") {
    them.say(challenge);
    wire::handshake_message welcome = them.take(them.hear_one()).value();
    welcome.proof[0] ^= 1;
    them.say(welcome);
    place.is_refused(refusal::wrong_secret, "secret");
  }
  SECTION("a welcome at once") {
    challenge.kind = static_cast<std::uint8_t>(kind::welcome);
    them.say(challenge);
    place.is_refused(refusal::out_of_order, "before its handshake was done");
  }
}

TEMPLATE_TEST_CASE("a link hears why it is refused", "[link]", tcp_backend, shm_backend) {
  false_listener<TestType> place;
  stranger& them = place.meet();
  them.hear_one();
  SECTION("its version") {
    them.say(handshake::refuse(refusal::version));
    place.is_refused(refusal::by_peer, "refused this process, which speaks another version",
                     errc::version_mismatch);
  }
  SECTION("its secret") {
    them.say(handshake::refuse(refusal::wrong_secret));
    place.is_refused(refusal::by_peer, "secret");
  }
  SECTION("for no known reason") {
    wire::handshake_message no = handshake::refuse(refusal::version);
    no.reason = 200;
    them.say(no);
    place.is_refused(refusal::by_peer, "");
  }
}

TEMPLATE_TEST_CASE("a link does not wait for a listener that says nothing", "[link]", tcp_backend,
                   shm_backend) {
  false_listener<TestType> place;
  place.meet(200ms);
  CHECK(place.end().code == errc::timed_out);
}

TEMPLATE_TEST_CASE("a link comes again where there was no room, with another share", "[link]",
                   tcp_backend, shm_backend) {
  false_listener<TestType> place;
  const wire::handshake_message first = place.meet().hear_one();
  place.them->say(handshake::refuse(refusal::too_many));
  stranger& again = place.next();
  const wire::handshake_message second = again.hear_one();
  CHECK(std::memcmp(first.share, second.share, sizeof(first.share)) != 0);
  again.say(handshake::refuse(refusal::wrong_secret));
  CHECK(place.end().code == errc::not_admitted);
}

TEMPLATE_TEST_CASE("a listener that sends the link's own records back is left", "[link]",
                   tcp_backend, shm_backend) {
  false_listener<TestType> place;
  stranger& them = place.meet();
  them.say(them.take(them.hear_one()).value());
  them.say(them.take(them.hear_one()).value());
  const std::vector<std::byte> record = them.hear_record();  // its address
  them.say_bytes(record);
  const error ended = place.end();
  CHECK(ended.text.find("changed on its way") != std::string::npos);
  CHECK(place.here.wire->stats().bad_macs == 1);
}

}  // namespace troupe::messages::testing
