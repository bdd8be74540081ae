// What a UCX link does with a TCP client that does not speak UCX, or only repeats what it heard:
// nothing that others notice.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "link_target.hpp"
#include "messages/link/ucx/ucx_handles.hpp"

namespace troupe::messages::testing {
namespace {

using bytes_view = std::span<const std::byte>;

/// A TCP socket of a client that may say anything.
class raw_socket {
 public:
  explicit raw_socket(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const ucx::address where = ucx::resolve(address, false).value();
    REQUIRE(::connect(fd_, where.get(), where.length) == 0);
  }
  explicit raw_socket(int fd) : fd_(fd) {}
  raw_socket(raw_socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~raw_socket() {
    if (fd_ >= 0) ::close(fd_);
  }

  void say(bytes_view bytes) const { ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// Waits a moment for an answer.
  void hear() const {
    pollfd ready{fd_, POLLIN, 0};
    std::array<std::byte, 4096> bytes;
    if (::poll(&ready, 1, 200) > 0) ::recv(fd_, bytes.data(), bytes.size(), 0);
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

/// Passes bytes between clients and a server, and keeps what the first client said.
class relay {
 public:
  explicit relay(const std::string& to) : server_(to), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(any);
    REQUIRE(::bind(listener_.fd(), reinterpret_cast<sockaddr*>(&any), length) == 0);
    REQUIRE(::listen(listener_.fd(), 4) == 0);
    REQUIRE(::getsockname(listener_.fd(), reinterpret_cast<sockaddr*>(&any), &length) == 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(any.sin_port));
    thread_ = std::thread([this] { run(); });
  }
  ~relay() {
    ::shutdown(listener_.fd(), SHUT_RDWR);
    stop_ = true;
    thread_.join();
  }

  [[nodiscard]] const std::string& address() const { return address_; }
  /// Piece by piece, as the client sent it.
  std::vector<std::vector<std::byte>> recorded() {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }

 private:
  void run() {
    const raw_socket client(::accept(listener_.fd(), nullptr, nullptr));
    if (client.fd() < 0) return;
    std::array<pollfd, 2> ready = {{{client.fd(), POLLIN, 0}, {server_.fd(), POLLIN, 0}}};
    while (!stop_) {
      ::poll(ready.data(), ready.size(), 20);
      for (std::size_t from = 0; from < 2; ++from) {
        if (ready[from].revents == 0) continue;
        std::array<std::byte, 4096> bytes;
        const auto count = ::recv(ready[from].fd, bytes.data(), bytes.size(), 0);
        if (count <= 0) return;
        const auto piece = bytes_view(bytes).first(static_cast<std::size_t>(count));
        ::send(ready[1 - from].fd, piece.data(), piece.size(), MSG_NOSIGNAL);
        const std::lock_guard lock(mutex_);
        if (from == 0) recorded_.emplace_back(piece.begin(), piece.end());
      }
    }
  }

  const raw_socket server_;
  const raw_socket listener_;
  std::string address_;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::vector<std::vector<std::byte>> recorded_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("bytes that are no UCX harm nobody", "[link]") {
  target<tcp_backend> nodes;
  constexpr unsigned seed = 5;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<raw_socket> open;
  for (int i = 0; i < 200; ++i) {
    std::vector<std::byte> bytes(random() % 300);
    for (std::byte& each : bytes) each = static_cast<std::byte>(random());
    raw_socket garbage(nodes.address);
    garbage.say(bytes);
    if (i % 2 == 0) open.push_back(std::move(garbage));
  }
  for (int i = 0; i < 200; ++i) open.emplace_back(nodes.address);  // that never say anything
  nodes.check_others();
  node<tcp_backend> late(nodes.backend);
  CHECK(late.try_connect(nodes.address));
}

TEST_CASE("a connection that was recorded leads nowhere when it is played again", "[link]") {
  tcp_backend backend;
  backend.options.secret = cluster_secret::random();
  backend.options.handshake_timeout = 300ms;
  target<tcp_backend> nodes(backend);
  std::vector<std::vector<std::byte>> recorded;
  {
    relay through(nodes.address);
    node<tcp_backend> honest(backend);
    REQUIRE(honest.try_connect(through.address()));
    nodes.server.ups.next();
    recorded = through.recorded();
  }
  nodes.server.downs.next();
  REQUIRE_FALSE(recorded.empty());
  for (const std::size_t cut : {std::size_t{1}, std::size_t{9}, recorded.front().size() / 2}) {
    const raw_socket truncated(nodes.address);
    truncated.say(bytes_view(recorded.front()).first(cut));
    nodes.check_others();
  }
  const raw_socket again(nodes.address);
  for (const std::vector<std::byte>& piece : recorded) {
    again.say(piece);
    again.hear();
  }
  nodes.check_others();
  CHECK(nodes.server.ups.stays_empty(500ms));
  nodes.check_others();
}

}  // namespace troupe::messages::testing
