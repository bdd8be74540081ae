// What somebody finds who comes to two processes of a link from outside, and what it may do there.
// The other process is this program again, told by TROUPE_LINK_VICTIM what to be.
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "another_self.hpp"
#include "link_fixture.hpp"
#include "plain_socket.hpp"
#include "tests/process_sockets.hpp"

namespace troupe::messages::testing {
namespace {

constexpr std::size_t page_bytes = 4096;

std::byte marked(std::size_t at) {
  return static_cast<std::byte>(at * 13 + 5);
}

/// The TCP and UDP sockets of a process, listening or not.
std::size_t count_of_internet(pid_t process) {
  std::size_t out = 0;
  for (const char* table : {"tcp", "tcp6", "udp", "udp6"})
    out += lines_of(process, table, 9).size();
  return out;
}

/// The names of a process's sockets of this machine; the abstract ones begin with '@'.
std::set<std::string> names_of(pid_t process) {
  std::set<std::string> out;
  for (const auto& words : lines_of(process, "unix", 6))
    if (words.size() > 7) out.insert(words[7]);
  return out;
}

/// Whether a table of the process can be read at all: else every list above is empty.
bool sees(pid_t process) {
  return !sockets_of(process).empty() && !lines_of(process, "unix", 6).empty();
}

/// What UCX's transports say to each other, as far as somebody may who never met the other side:
/// the magic of its tcp connections with a request to connect, a write to memory (PUT) there, and
/// garbage.
std::vector<std::vector<std::byte>> sayings(std::uint64_t at, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<std::byte>> out;
  const std::uint64_t magic = 0xCAFEBABE12345678;
  for (int shape = 0; shape < 64; ++shape) {
    std::vector<std::byte> one;
    const auto add = [&](const auto& value) {
      const auto bytes = std::as_bytes(std::span(&value, 1));
      one.insert(one.end(), bytes.begin(), bytes.end());
    };
    if (shape % 2 == 0) add(magic);
    for (int message = 0; message < 4; ++message) {
      const auto id = static_cast<std::uint8_t>(shape < 32 ? 28 + (shape + message) % 8 : random());
      add(id);
      add(static_cast<std::uint32_t>(24));  // its length
      add(at);
      add(std::uint64_t{64});
      add(static_cast<std::uint32_t>(message));
      for (int i = 0; i < 8; ++i) add(random());
    }
    out.push_back(std::move(one));
  }
  return out;
}

void throw_at_port(int port, std::uint64_t at) {
  for (const auto& saying : sayings(at, static_cast<std::uint64_t>(port))) {
    plain_socket outsider("127.0.0.1:" + std::to_string(port));
    outsider.say(saying);
    std::vector<std::byte> heard;
    outsider.hear(heard, 5);
    outsider.say(saying);
  }
}

/// Datagrams, and connections, to a name as /proc shows it.
void throw_at_name(const std::string& name, std::uint64_t at) {
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  if (name.size() >= sizeof(where.sun_path)) return;
  std::memcpy(where.sun_path, name.data(), name.size());
  if (name.front() == '@') where.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() +
                                             (name.front() == '@' ? 0 : 1));
  for (const int type : {SOCK_DGRAM, SOCK_STREAM, SOCK_SEQPACKET})
    for (const auto& saying : sayings(at, 7)) {
      const descriptor outsider(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
      REQUIRE(outsider);
      if (connect(outsider.get(), reinterpret_cast<const sockaddr*>(&where), length) != 0) break;
      send(outsider.get(), saying.data(), saying.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

/// A process with a link that answers requests, and a page of its memory that stays as it is.
struct victim : listening_self {
  explicit victim(const std::string& transport)
      : listening_self("[.victim]", "TROUPE_LINK_VICTIM=" + transport + ":") {
    std::istringstream words(listening_self::address());
    words >> door >> page;
  }

  [[nodiscard]] bool page_is_whole() const {
    std::vector<std::byte> bytes(page_bytes);
    const iovec here{bytes.data(), bytes.size()};
    const iovec there{reinterpret_cast<void*>(page), bytes.size()};
    if (process_vm_readv(pid(), &here, 1, &there, 1, 0) != static_cast<ssize_t>(page_bytes))
      return false;
    for (std::size_t i = 0; i < page_bytes; ++i)
      if (bytes[i] != marked(i)) return false;
    return true;
  }

  std::string door;
  std::uint64_t page = 0;
};

template <class Backend>
void ask(node<Backend>& here, peer_id peer, std::int64_t number, std::size_t bytes) {
  frame question = with_bytes(number, bytes);
  question.kind = frame_kind::request;
  here.wire->send(peer, std::move(question), {});
  REQUIRE(number_of(here.frames.next()) == number);
}

}  // namespace

TEST_CASE("be a victim", "[.victim]") {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* const what = std::getenv("TROUPE_LINK_VICTIM");
  REQUIRE(what != nullptr);
  const std::string text = what;
  std::vector<std::byte> page(page_bytes);
  for (std::size_t i = 0; i < page.size(); ++i) page[i] = marked(i);
  const auto run = [&](auto backend) {
    node<decltype(backend)> here(backend);
    here.react([&](peer_id peer, const frame& message) {
      if (message.kind == frame_kind::request) here.wire->send(peer, message, {});
    });
    const std::string says = here.wire->listen("").value() + " " +
                             std::to_string(reinterpret_cast<std::uintptr_t>(page.data()));
    REQUIRE(write(std::stoi(text.substr(4)), says.c_str(), says.size() + 1) > 0);
    mailbox<int>().next(std::chrono::hours(1));
  };
  if (text.starts_with("tcp")) run(tcp_backend{});
  if (text.starts_with("shm")) run(shm_backend{});
}

TEST_CASE("from outside, a link over shared memory has no port at all", "[link]") {
  shm_backend backend;
  node<shm_backend> here(backend);
  const victim them("shm");
  const peer_id peer = here.try_connect(them.door).value();
  ask(here, peer, 1, 1 << 20);
  for (const pid_t process : {getpid(), them.pid()}) {
    REQUIRE(sees(process));
    CHECK(count_of_internet(process) == 0);
  }
  const std::string path = them.door.substr(5);
  REQUIRE(names_of(them.pid()).contains(path));
  REQUIRE(them.page_is_whole());
  for (const std::string& name : names_of(them.pid())) throw_at_name(name, them.page);
  for (const std::string& name : names_of(getpid())) throw_at_name(name, them.page);
  ask(here, peer, 2, 1 << 20);
  CHECK(them.page_is_whole());
  CHECK(here.downs.stays_empty(0ms));
  node<shm_backend> late(backend);
  CHECK(late.try_connect(them.door));
}

TEST_CASE("from outside, a link over TCP has its door and no other port", "[link]") {
  tcp_backend backend;
  node<tcp_backend> here(backend);
  const victim them("tcp");
  const peer_id peer = here.try_connect(them.door).value();
  ask(here, peer, 1, 1 << 20);
  const int door = std::stoi(them.door.substr(them.door.rfind(':') + 1));
  CHECK(ports_of(them.pid(), {"tcp", "tcp6", "udp", "udp6"}) == std::set<int>{door});
  CHECK(ports_of(getpid(), {"tcp", "tcp6", "udp", "udp6"}).empty());
  REQUIRE(them.page_is_whole());
  throw_at_port(door, them.page);
  for (const std::string& name : names_of(them.pid())) throw_at_name(name, them.page);
  ask(here, peer, 2, 1 << 20);
  CHECK(them.page_is_whole());
  CHECK(here.downs.stays_empty(0ms));
  node<tcp_backend> late(backend);
  CHECK(late.try_connect(them.door));
}

}  // namespace troupe::messages::testing
