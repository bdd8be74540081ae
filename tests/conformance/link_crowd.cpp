// What a link does when more strangers come than it can talk to at once.
#include <sys/prctl.h>
#include <sys/resource.h>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "another_self.hpp"
#include "lent.hpp"
#include "link_target.hpp"
#include "messages/link/door/alarm.hpp"
#include "messages/link/door/reach.hpp"
#include "stranger.hpp"

namespace troupe::messages::testing {
namespace {

/// Strangers in a process of their own, so that the sockets counted here are the link's. Each says
/// the first `bytes` of its hello, or of garbage where they are more, and holds its connection.
/// They have all come when this returns.
listening_self crowd(const std::string& address, unsigned many, std::size_t bytes) {
  return {"[.crowd]", "TROUPE_CROWD=" + address + " " + std::to_string(many) + " " +
                          std::to_string(bytes) + " "};
}

}  // namespace

TEST_CASE("a crowd of strangers", "[.crowd]") {
  const char* const what = std::getenv("TROUPE_CROWD");
  REQUIRE(what != nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::istringstream words(what);
  std::string address;
  unsigned many = 0;
  std::size_t bytes = 0;
  int told = -1;
  words >> address >> many >> bytes >> told;
  rlimit files{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = files.rlim_max;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &files) == 0);
  REQUIRE(files.rlim_cur > many + 100);
  std::array<std::byte, 64> random;
  fill_random(random);
  const wire::handshake_message hello =
      handshake(handshake::role::connects, key_share::make({}, random)).hello();
  const std::vector<std::byte> garbage(bytes, std::byte{'x'});
  const auto says = bytes > sizeof(hello) ? std::span(garbage) : bytes_of(hello).first(bytes);
  std::vector<plain_socket> sockets;
  for (unsigned i = 0; i < many; ++i) {
    sockets.emplace_back(address);
    sockets.back().say(says);
  }
  REQUIRE(write(told, "all", 4) == 4);
  mailbox<int>().next(std::chrono::hours(1));
}

TEMPLATE_TEST_CASE("honest peers join while thousands of strangers hold on to their connections",
                   "[link]", tcp_backend, shm_backend) {
  TestType backend;
  backend.options.secret = cluster_secret::random();
  backend.options.handshake_timeout = 60s;  // so that nobody is cut off for being slow
  const std::size_t bytes =
      GENERATE(std::size_t{0}, std::size_t{1}, sizeof(wire::handshake_message));
  CAPTURE(bytes);
  target<TestType> nodes(backend);
  node<TestType> late(nodes.backend);
  const std::size_t before = open_files();
  constexpr unsigned many = 2000;
  const listening_self them = crowd(nodes.address, many, bytes);
  const auto pushed_out = [&] { return nodes.refused(refusal::too_many); };
  REQUIRE(comes_true([&] { return pushed_out() > 0; }));

  REQUIRE(late.try_connect(nodes.address));  // in 5 s
  nodes.server.ups.next();
  const unsigned most = link_options{}.handshakes;
  // Where it can, the system drops most of those who do not say hello.
  const bool all_are_heard =
      transport_of<TestType> == link_transport::shm || bytes == sizeof(wire::handshake_message);
  CHECK(comes_true([&] { return pushed_out() >= (all_are_heard ? many - most : 1); }));
  CHECK(open_files() <= before + most + 64);  // and what the new peer needs
  CHECK(nodes.refused(refusal::too_slow) == 0);
  CHECK(nodes.server.ups.stays_empty(0ms));
  CHECK(late.downs.stays_empty(0ms));
  CHECK(nodes.client.send(nodes.to_server, with_bytes(7, 1 << 20)).has_value());
}

TEST_CASE("once many strangers have come, only who says hello is heard", "[link]") {
  tcp_backend backend;
  backend.options.secret = cluster_secret::random();
  backend.options.handshake_timeout = 60s;
  const std::size_t hello = sizeof(wire::handshake_message);
  const std::size_t bytes = GENERATE_COPY(std::size_t{0}, std::size_t{1}, hello - 1, 2 * hello);
  CAPTURE(bytes);
  target<tcp_backend> nodes(backend);
  const auto heard = [&] {
    return nodes.refused(refusal::too_many) + nodes.refused(refusal::malformed);
  };
  constexpr unsigned first = 300;
  const listening_self those_before = crowd(nodes.address, first, bytes);
  REQUIRE(comes_true([&] { return heard() >= door::alarm::enough; }));

  const listening_self them = crowd(nodes.address, 2000, bytes);
  node<tcp_backend> late(nodes.backend);
  REQUIRE(late.try_connect(nodes.address));
  nodes.server.ups.next();
  CHECK(heard() <= first + 1);  // the late one may have taken somebody's place
  stranger wrong(link_transport::tcp, nodes.address);
  wire::handshake_message other = wrong.hello();
  --other.wire;
  wrong.say(other);
  CHECK(wrong.hear_one().reason == static_cast<std::uint8_t>(refusal::version));
  CHECK_FALSE(door::reach({nodes.address}, 5s).front());  // and who only tries the way
  CHECK(nodes.client.send(nodes.to_server, with_bytes(7, 1 << 20)).has_value());
}

TEMPLATE_TEST_CASE("handshakes are bounded in number and time", "[link]", tcp_backend,
                   shm_backend) {
  TestType backend;
  backend.options.handshakes = 50;
  backend.options.handshake_timeout = 300ms;
  target<TestType> nodes(backend);
  constexpr unsigned many = 110;  // too few to be dropped by the system
  const listening_self them = crowd(nodes.address, many, 0);
  const auto over = [&] {
    return nodes.refused(refusal::too_slow) + nodes.refused(refusal::too_many);
  };
  CHECK(comes_true([&] { return over() == many; }));
  CHECK(nodes.refused(refusal::too_slow) >= 1);
  CHECK(nodes.refused(refusal::too_many) > 0);
  CHECK(nodes.server.ups.stays_empty(0ms));
  nodes.check_others();
  node<TestType> late(nodes.backend);  // there is room again
  CHECK(late.try_connect(nodes.address));
}

}  // namespace troupe::messages::testing
