// Links with a second door: processes of one machine meet there, over shared memory, and all others
// at the first.
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <string>

#include "messages/link/meeting_place.hpp"
#include "tests/conformance/lent.hpp"
#include "tests/unit/heard_stderr.hpp"

namespace troupe::messages::testing {
namespace {

constexpr std::size_t tensor_bytes = 1 << 20;

/// A link with both doors, and what they are called.
struct host {
  inside_backend backend = {};
  node<inside_backend> here{backend};
  std::string address = here.wire->listen("").value();
  meeting_place met = meeting_place::parse(address);
};

/// Nothing is lent over tcp.
template <class Node>
void check_not_lent(Node& from, peer_id to, host& at) {
  for (std::int64_t number = 1; number <= 20; ++number) {
    REQUIRE(from.send(to, lendable(*from.wire, number, tensor_bytes)).has_value());
    const auto came = at.here.frames.next();
    CHECK(number_of(came) == number);
    CHECK(holds_floats(came.tensors.at(0), tensor_bytes, static_cast<unsigned>(number)));
  }
  CHECK(from.wire->stats().bytes_lent == 0);
}

}  // namespace

TEST_CASE("A meeting place is written as one address and read again") {
  const meeting_place both{"[fd00::1]:80", "unix:/tmp/troupe-0/1-ab", "0123"};
  CHECK(both.text() == "[fd00::1]:80+unix:/tmp/troupe-0/1-ab@0123");
  CHECK(meeting_place::parse(both.text()) == both);
  for (const std::string one : {"10.0.0.1:80", "unix:/tmp/a@b", "", "a:1+unix:/tmp/x", "x@y"}) {
    CHECK(meeting_place::parse(one) == meeting_place{one});
    CHECK(meeting_place::parse(one).text() == one);
  }
  CHECK(meet_inside(both, both));
  CHECK_FALSE(meet_inside(both, {"10.0.0.1:80", "unix:/tmp/troupe-0/2-cd", "4567"}));
  CHECK_FALSE(meet_inside(both, {"10.0.0.1:80"}));
  CHECK_FALSE(meet_inside({}, {}));
}

TEST_CASE("Processes of one machine meet at the inner door, where memory is lent") {
  host there;
  CHECK(there.met.outside.starts_with("127.0.0.1:"));
  CHECK(there.met.inside.starts_with("unix:/"));
  CHECK(there.met.machine == this_machine());
  inside_backend backend;
  node<inside_backend> here(backend);
  const auto to = here.try_connect(there.address).value();
  send_until_lent(here, to);
}

TEST_CASE("A link without a second door, and one of another machine, come to the first") {
  host there;
  tcp_backend plain;
  node<tcp_backend> outsider(plain);
  const auto from_outside = outsider.try_connect(there.address).value();
  REQUIRE(outsider.send(from_outside, with_bytes(7, tensor_bytes)).has_value());
  CHECK(number_of(there.here.frames.next()) == 7);

  inside_backend backend;
  node<inside_backend> distant(backend);
  meeting_place elsewhere = there.met;
  elsewhere.machine = "another";
  const auto to = distant.try_connect(elsewhere.text()).value();
  check_not_lent(distant, to, there);
}

TEST_CASE("Where the inner door is out of reach, the outer one is used") {
  host there;
  REQUIRE(::unlink(there.met.inside.substr(5).c_str()) == 0);
  inside_backend backend;
  node<inside_backend> here(backend);
  const auto to = here.try_connect(there.address).value();
  check_not_lent(here, to, there);
}

TEST_CASE(
    "A link that is destroyed between a try at the inner door and one at the outer tells it") {
  constexpr int tries = 200;  // some of them are between the two then
  host there;
  inside_backend backend;
  backend.options.peers = 0;  // so both doors refuse
  int told = 0;
  {
    const tests::heard_stderr heard;  // each second try is warned of
    const auto wire = backend.make({});
    for (int i = 0; i < tries; ++i)
      wire->connect(there.address, bound, [&told](const result<peer_id>& met) {
        if (!met && met.error().code == errc::address_unavailable) ++told;
      });
  }
  CHECK(told == tries);
}

TEST_CASE("Peers at both doors are served at once, and each sees the end") {
  host there;
  inside_backend backend;
  node<inside_backend> inner(backend), outer(backend);
  const auto by_memory = inner.try_connect(there.address);
  const auto by_tcp = outer.try_connect(there.met.outside);
  REQUIRE(by_memory);
  REQUIRE(by_tcp);
  for (std::int64_t number = 1; number <= 50; ++number) {
    REQUIRE(inner.send(*by_memory, with_bytes(number, tensor_bytes)).has_value());
    REQUIRE(outer.send(*by_tcp, with_bytes(number, tensor_bytes)).has_value());
  }
  std::int64_t sum = 0;
  for (int i = 0; i < 100; ++i) sum += number_of(there.here.frames.next());
  CHECK(sum == 2 * 50 * 51 / 2);
  CHECK(there.here.wire->stats().peers == 2);
  there.here.wire.reset();
  CHECK(inner.downs.next().second.code == errc::peer_lost);
  CHECK(outer.downs.next().second.code == errc::peer_lost);
}

TEST_CASE("A link that has one address names no second door") {
  tcp_backend plain;
  node<tcp_backend> one(plain);
  CHECK(meeting_place::parse(one.wire->listen("").value()).inside.empty());
  shm_backend memory;
  node<shm_backend> other(memory);
  CHECK(meeting_place::parse(other.wire->listen("").value()).inside.empty());
}

}  // namespace troupe::messages::testing
