// Whether somebody is reached at an address: what the system says, silence, and a way that swallows
// large packets.
#include <arpa/inet.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "messages/base/host_name.hpp"
#include "messages/descriptor.hpp"
#include "messages/link/door/reach.hpp"

namespace troupe::messages {
namespace {

using namespace std::chrono_literals;
using of_way = door::obstacle::kind;

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

/// From now on segments that are longer than so many bytes do not reach a socket, nor those that
/// come of it.
void swallow_beyond(unsigned bytes, const place& at) {
  std::array<sock_filter, 4> only_small = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, bytes, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, 0xFFFFFFFF),
      BPF_STMT(BPF_RET | BPF_K, 0),
  }};
  const sock_fprog program{only_small.size(), only_small.data()};
  REQUIRE(::setsockopt(at.socket.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) ==
          0);
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
  REQUIRE(found[0]);
  CHECK(found[0]->what == of_way::refusal);
  CHECK(found[0]->why == "Connection refused");
  CHECK_FALSE(found[1]);
  REQUIRE(found[2]);
  CHECK(found[2]->what == of_way::refusal);
  CHECK(door::reach({}, 60s).empty());
}

TEST_CASE("a way that this host has no route for is named in words, with the host") {
  const auto found = door::reach({"224.0.0.1:9"}, 60s);  // a group: no connection leads there
  REQUIRE(found.size() == 1);
  REQUIRE(found[0]);
  CHECK(found[0]->what == of_way::refusal);
  CHECK(found[0]->why == "no route leads there from " + host_name() + ": Network is unreachable");
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
  CHECK_FALSE(found.back());
  REQUIRE(found[7]);
  CHECK(found[7]->what == of_way::silence);
  CHECK(found[7]->why == "no answer within 0.3 s");
}

TEST_CASE("a way over which only small packets come through is told apart from an open one") {
  const auto narrow = bound();
  swallow_beyond(1000, narrow);  // headers too: a connection comes about
  REQUIRE(::listen(narrow.socket.get(), 4) == 0);
  const auto open = bound();
  REQUIRE(::listen(open.socket.get(), 4) == 0);
  const auto found = door::reach({narrow.address, open.address}, door::least_knock + 200ms);
  REQUIRE(found.size() == 2);
  REQUIRE(found[0]);
  CHECK(found[0]->what == of_way::swallowing);
  CHECK_THAT(found[0]->why, Catch::Matchers::StartsWith("none of 64 KiB was acknowledged within "));
  CHECK_FALSE(found[1]);
  // In less time nobody can say so.
  CHECK_FALSE(door::reach({narrow.address}, 50ms).front());
}

}  // namespace troupe::messages
