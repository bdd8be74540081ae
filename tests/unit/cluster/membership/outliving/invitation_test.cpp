#include "cluster/membership/outliving/invitation.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "messages/descriptor.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;

std::pair<descriptor, descriptor> socket_ends() {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  return {descriptor(ends[0]), descriptor(ends[1])};
}

}  // namespace

TEST_CASE("An invitation arrives as it was sent, and after the last one there is nothing") {
  auto [one, other] = socket_ends();
  const auto secret = messages::cluster_secret::random();
  for (const std::string trainer : {"10.0.0.1:4711", "unix:/run/with space/door"}) {
    REQUIRE(send_invitation(one.get(), {trainer, 2, 1, secret}));
    const auto got = receive_invitation(other.get());
    REQUIRE(got);
    REQUIRE(*got);
    CHECK((*got)->trainer == trainer);
    CHECK((*got)->transport == 2);
    CHECK((*got)->network == 1);
    CHECK(std::ranges::equal((*got)->secret.bytes(), secret.bytes()));
  }
  one.reset();
  const auto none = receive_invitation(other.get());
  REQUIRE(none);
  CHECK_FALSE(*none);
}

TEST_CASE("An invitation has room for the longest secret of a file") {
  const auto [one, other] = socket_ends();
  const std::vector<std::byte> bytes(messages::cluster_secret::most_bytes, std::byte{0xa5});
  const messages::cluster_secret secret{std::span(bytes)};
  REQUIRE(send_invitation(one.get(), {"10.0.0.1:4711", 0, 0, secret}));
  const auto got = receive_invitation(other.get());
  REQUIRE(got);
  REQUIRE(*got);
  CHECK((*got)->trainer == "10.0.0.1:4711");
  CHECK(std::ranges::equal((*got)->secret.bytes(), bytes));
}

TEST_CASE("What is no invitation is refused, and so is one that nobody reads") {
  auto [one, other] = socket_ends();
  for (const std::string text : {"x", "1 1", "1 1 zz host:1", "999 1 00 host:1", "1 1 0011 "}) {
    REQUIRE(::send(one.get(), text.data(), text.size(), 0) > 0);
    const auto got = receive_invitation(other.get());
    REQUIRE_FALSE(got);
    CHECK(got.error().code == errc::bad_frame);
  }
  other.reset();
  const auto sent =
      send_invitation(one.get(), {"host:1", 0, 0, messages::cluster_secret::random()});
  REQUIRE_FALSE(sent);
  CHECK(sent.error().code == errc::peer_lost);
}

TEST_CASE("Why nobody follows an invitation is told to the trainer that sent it, and to no other") {
  auto [one, other] = socket_ends();
  CHECK(why_declined(one.get(), "host:1").empty());
  decline_invitation(other.get(), "host:1", "keeper: the port 4711 is taken");
  decline_invitation(other.get(), "host:22", "keeper: no such address");
  CHECK(why_declined(one.get(), "host:22") == "keeper: no such address");
  CHECK(why_declined(one.get(), "host:1").empty());
  decline_invitation(other.get(), "host:22", "keeper: a trainer before has left");
  decline_invitation(other.get(), "host:22", "keeper: no such address");
  CHECK(why_declined(one.get(), "host:22") == "keeper: no such address");
  decline_invitation(other.get(), "host:22", "nobody reads this");
  one.reset();
  const auto none = receive_invitation(other.get());
  REQUIRE(none);
  CHECK_FALSE(*none);
  decline_invitation(other.get(), "host:22", "nor this");
}
