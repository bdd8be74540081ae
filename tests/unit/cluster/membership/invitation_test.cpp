#include "cluster/membership/outliving/invitation.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <utility>

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
