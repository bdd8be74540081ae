// What a link does with a client that does not speak its protocol, only repeats what it heard, or
// stands between two that do: nothing that others notice.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lent.hpp"
#include "link_target.hpp"
#include "plain_socket.hpp"

namespace troupe::messages::testing {
namespace {

/// Passes bytes between one client and a server, and keeps what the client said.
class relay {
 public:
  explicit relay(const std::string& to) : server_(to), listener_(open()) {
    thread_ = std::thread([this] { run(); });
  }
  relay(const relay&) = delete;
  relay& operator=(const relay&) = delete;
  ~relay() {
    stop_ = true;
    thread_.join();
  }

  [[nodiscard]] const std::string& address() const { return listener_.text(); }
  /// Piece by piece, as the client sent it.
  std::vector<std::vector<std::byte>> recorded() {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }
  /// Changes one bit of what that side says next.
  void spoil(bool of_server) { spoiled_ = of_server ? 1 : 0; }

 private:
  static door::listener open() {
    return std::move(door::listener::open(door::resolve(":0", true).value(), ":0").value());
  }

  void run() {
    pollfd coming{listener_.fd(), POLLIN, 0};
    while (!stop_ && ::poll(&coming, 1, 20) == 0) {
    }
    auto visitor = listener_.accept();
    if (!visitor) return;
    std::array<plain_socket, 2> sides = {plain_socket(std::move(visitor->socket)),
                                         std::move(server_)};
    while (!stop_) {
      std::array<pollfd, 2> ready = {{{sides[0].fd(), POLLIN, 0}, {sides[1].fd(), POLLIN, 0}}};
      ::poll(ready.data(), ready.size(), 20);
      for (std::size_t from = 0; from < 2; ++from) {
        std::vector<std::byte> piece;
        if (ready[from].revents == 0 || !sides[from].hear(piece, 0)) continue;
        if (piece.empty()) return;
        pass(from, piece, sides[1 - from]);
      }
    }
  }

  void pass(std::size_t from, std::vector<std::byte>& piece, plain_socket& to) {
    int expected = static_cast<int>(from);
    if (spoiled_.compare_exchange_strong(expected, -1)) piece.back() ^= std::byte{1};
    if (from == 0) {  // before it arrives, so that whoever sees that finds it here
      const std::lock_guard lock(mutex_);
      recorded_.push_back(piece);
    }
    to.say(piece);
  }

  plain_socket server_;
  door::listener listener_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> spoiled_ = -1;
  std::mutex mutex_;
  std::vector<std::vector<std::byte>> recorded_;
  std::thread thread_;
};

}  // namespace

TEMPLATE_TEST_CASE("bytes that are no handshake harm nobody", "[link]", tcp_backend, shm_backend) {
  TestType backend;
  backend.options.handshakes = 64;
  target<TestType> nodes(backend);
  constexpr unsigned seed = 5;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<plain_socket> open;
  for (int i = 0; i < 200; ++i) {
    std::vector<std::byte> bytes(random() % 300);
    for (std::byte& each : bytes) each = static_cast<std::byte>(random());
    plain_socket garbage(nodes.address);
    garbage.say(bytes);
    if (i % 2 == 0) open.push_back(std::move(garbage));
  }
  for (int i = 0; i < 200; ++i) open.emplace_back(nodes.address);  // that never say anything
  nodes.check_others();
  CHECK(nodes.server.ups.stays_empty(0ms));
  node<TestType> late(nodes.backend);
  CHECK(late.try_connect(nodes.address));
}

TEST_CASE("a connection that was recorded leads nowhere when it is played again", "[link]") {
  tcp_backend backend;
  backend.options.secret = cluster_secret::random();
  target<tcp_backend> nodes(backend);
  std::vector<std::vector<std::byte>> recorded;
  {
    relay through(nodes.address);
    node<tcp_backend> honest(backend);
    const peer_id peer = honest.try_connect(through.address()).value();
    nodes.server.ups.next();
    REQUIRE(honest.send(peer, numbered(5)).has_value());
    CHECK(number_of(nodes.server.frames.next()) == 5);
    recorded = through.recorded();
  }
  REQUIRE(recorded.size() >= 3);
  // At once: the server still shows the share that the recorded proof was made for.
  plain_socket again(nodes.address);
  std::vector<std::byte> heard;
  for (const std::vector<std::byte>& piece : recorded) {
    again.say(piece);
    again.hear(heard, 200);
  }
  nodes.server.downs.next();  // the honest one
  CHECK(comes_true([&] { return nodes.refused(refusal::wrong_secret) == 1; }));
  for (const std::size_t cut : {std::size_t{1}, std::size_t{9}, recorded.front().size() / 2}) {
    plain_socket truncated(nodes.address);
    truncated.say(bytes_view(recorded.front()).first(cut));
    nodes.check_others();
  }
  CHECK(nodes.server.ups.stays_empty(50ms));
  nodes.check_others();
}

TEST_CASE("a bit that changes on the way ends the connection of both sides", "[link]") {
  target<tcp_backend> nodes;
  relay through(nodes.address);
  node<tcp_backend> far(nodes.backend);
  const peer_id to_server = far.try_connect(through.address()).value();
  const peer_id to_far = nodes.server.ups.next();
  SECTION("of what the side says that connected") {
    through.spoil(false);
    far.wire->send(to_server, with_bytes(5, 100), {});
    CHECK(nodes.server.downs.next().first == to_far);
    CHECK(nodes.server.wire->stats().bad_macs == 1);
    CHECK(far.downs.next().first == to_server);
  }
  SECTION("of what the side says that accepted") {
    through.spoil(true);
    nodes.server.wire->send(to_far, with_bytes(5, 100), {});
    CHECK(far.downs.next().first == to_server);
    CHECK(far.wire->stats().bad_macs == 1);
    CHECK(nodes.server.downs.next().first == to_far);
  }
  CHECK(nodes.server.frames.stays_empty(0ms));
  CHECK(far.frames.stays_empty(0ms));
  nodes.check_others();
}

}  // namespace troupe::messages::testing
