// Whether somebody is reached at an address: what the system says, and silence.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "messages/base/host_name.hpp"
#include "messages/descriptor.hpp"
#include "messages/link/door/reach.hpp"

namespace troupe::messages {
namespace {

using namespace std::chrono_literals;

struct place {
  descriptor socket;
  std::string address;
};

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  out.sin_port = htons(port);
  return out;
}

/// Bound to a free port of this machine; nobody is reached there unless it also listens.
place bound() {
  place out{descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), {}};
  auto at = loopback(0);
  socklen_t length = sizeof(at);
  auto* const any = reinterpret_cast<sockaddr*>(&at);
  REQUIRE(::bind(out.socket.get(), any, length) == 0);
  REQUIRE(::getsockname(out.socket.get(), any, &length) == 0);
  out.address = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  return out;
}

}  // namespace

TEST_CASE("who listens is reached at once, and who does not is named with the system's word") {
  const auto open = bound();
  REQUIRE(::listen(open.socket.get(), 4) == 0);
  const auto closed = bound();
  const auto begin = std::chrono::steady_clock::now();
  const auto found = door::reach({closed.address, open.address, "127.0.0.1"}, 60s);
  CHECK(std::chrono::steady_clock::now() - begin < 30s);
  REQUIRE(found.size() == 3);
  REQUIRE_FALSE(found[0]);
  CHECK(found[0].error().code == errc::address_unavailable);
  CHECK(found[0].error().text == "Connection refused");
  CHECK(found[1]);
  REQUIRE_FALSE(found[2]);
  CHECK(found[2].error().code == errc::address_unavailable);
  CHECK(door::reach({}, 60s).empty());
}

TEST_CASE("a way that this host has no route for is named in words, with the host") {
  const auto found = door::reach({"224.0.0.1:9"}, 60s);  // a group: no connection leads there
  REQUIRE(found.size() == 1);
  REQUIRE_FALSE(found[0]);
  CHECK(found[0].error().code == errc::address_unavailable);
  CHECK(found[0].error().text ==
        "no route leads there from " + host_name() + ": Network is unreachable");
}

TEST_CASE("who does not answer is silent when the patience has passed, and holds up nobody") {
  const auto full = bound();  // the system drops who comes while its queue is full
  REQUIRE(::listen(full.socket.get(), 0) == 0);
  const auto open = bound();
  REQUIRE(::listen(open.socket.get(), 4) == 0);
  std::vector<std::string> addresses(8, full.address);
  addresses.push_back(open.address);
  const auto begin = std::chrono::steady_clock::now();
  const auto found = door::reach(addresses, 300ms);
  CHECK(std::chrono::steady_clock::now() - begin >= 300ms);
  CHECK(found.back());
  REQUIRE_FALSE(found[7]);
  CHECK(found[7].error().code == errc::timed_out);
  CHECK(found[7].error().text == "no answer within 0.3 s");
}

}  // namespace troupe::messages
