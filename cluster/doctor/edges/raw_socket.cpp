#include "cluster/doctor/edges/raw_socket.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/hosts/network_range.hpp"
#include "messages/link/cluster_secret.hpp"

namespace troupe::cluster::doctor {
namespace {

constexpr auto longest_pause = actors::usual_deadlines.probe_socket;
constexpr std::uint64_t most_block_bytes = std::uint64_t{64} << 20;

/// What a client asks: the answer is `length` itself once so many bytes more have come.
struct order {
  std::uint64_t length = 0;
};

error why(const char* what) {
  const bool late = errno == EAGAIN || errno == EWOULDBLOCK || errno == ETIMEDOUT;
  return {late ? errc::timed_out : errc::peer_lost,
          std::string(what) + ": " +
              (late ? "nothing came for " + std::to_string(longest_pause.count()) + " s"
                    : std::strerror(errno))};
}

result<void> send_all(int socket, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto count = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return tl::unexpected(why("a plain socket cannot send"));
    at += count;
    bytes -= static_cast<std::size_t>(count);
  }
  return {};
}

result<void> receive_all(int socket, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const auto count = ::recv(socket, at, bytes, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) return fail(errc::peer_lost, "a plain socket was closed");
    if (count < 0) return tl::unexpected(why("a plain socket hears nothing"));
    at += count;
    bytes -= static_cast<std::size_t>(count);
  }
  return {};
}

void prepare(int socket) {
  const int on = 1;
  const timeval patience{longest_pause.count(), 0};
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

struct socket_address {
  sockaddr_storage bytes{};
  socklen_t length = sizeof(sockaddr_storage);

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  [[nodiscard]] sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
};

result<socket_address> numeric_address(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0)
    return fail(errc::address_unavailable, "\"" + host + "\" is no address");
  socket_address out;
  std::memcpy(&out.bytes, found->ai_addr, found->ai_addrlen);
  out.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return out;
}

// Until the client leaves or breaks a rule.
void serve(int client, std::uint64_t token) {
  prepare(client);
  std::uint64_t said = 0;
  if (!receive_all(client, &said, sizeof said) || said != token) return;
  std::vector<char> room(std::size_t{1} << 20);
  for (order asked; receive_all(client, &asked, sizeof asked);) {
    if (asked.length > most_block_bytes) return;
    for (std::uint64_t left = asked.length; left > 0;) {
      const auto part = std::min<std::uint64_t>(left, room.size());
      if (!receive_all(client, room.data(), part)) return;
      left -= part;
    }
    if (!send_all(client, &asked, sizeof asked)) return;
  }
}

class raw_socket final : public channel {
 public:
  explicit raw_socket(descriptor socket) : socket_(std::move(socket)) {}

  result<void> round_trips(int count) override {
    for (int i = 0; i < count; ++i)
      if (auto done = ask(0).and_then([this] { return answer(); }); !done) return done;
    return {};
  }

  result<void> push(std::size_t bytes, int count) override {
    data_.resize(bytes);
    for (int i = 0; i < count; ++i) {
      if (auto sent = ask(bytes); !sent) return sent;
      if (auto sent = send_all(socket_.get(), data_.data(), bytes); !sent) return sent;
    }
    for (int i = 0; i < count; ++i)
      if (auto heard = answer(); !heard) return heard;
    return {};
  }

 private:
  result<void> ask(std::uint64_t length) {
    const order what{length};
    return send_all(socket_.get(), &what, sizeof what);
  }
  result<void> answer() {
    order what;
    return receive_all(socket_.get(), &what, sizeof what);
  }

  const descriptor socket_;
  std::vector<char> data_;
};

}  // namespace

raw_socket_listener::raw_socket_listener(descriptor socket, std::string address)
    : socket_(std::move(socket)), address_(std::move(address)) {
  messages::fill_random(std::as_writable_bytes(std::span(&token_, 1)));
  thread_ = std::thread([this] {
    for (;;) {
      const descriptor client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) return;  // the destructor has shut the socket, or no descriptor is left
      serve(client.get(), token_);
    }
  });
}

raw_socket_listener::~raw_socket_listener() {
  ::shutdown(socket_.get(), SHUT_RDWR);
  thread_.join();
}

result<std::unique_ptr<raw_socket_listener>> raw_socket_listener::open(const std::string& host) {
  auto where = numeric_address(host, "0");
  if (!where) return tl::unexpected(where.error());
  descriptor socket(::socket(where->get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket || ::bind(socket.get(), where->get(), where->length) != 0 ||
      ::listen(socket.get(), 4) != 0 ||
      ::getsockname(socket.get(), where->get(), &where->length) != 0)
    return fail(errc::address_unavailable,
                "no plain socket can listen at " + host + ": " + std::strerror(errno));
  const unsigned port =
      ntohs(where->get()->sa_family == AF_INET
                ? reinterpret_cast<const sockaddr_in*>(&where->bytes)->sin_port
                : reinterpret_cast<const sockaddr_in6*>(&where->bytes)->sin6_port);
  return std::unique_ptr<raw_socket_listener>(
      new raw_socket_listener(std::move(socket), with_port(host, port)));
}

result<std::unique_ptr<channel>> connect_raw_socket(const std::string& address,
                                                    std::uint64_t token) {
  const auto where = numeric_address(host_of(address), address.substr(address.rfind(':') + 1));
  if (!where) return tl::unexpected(where.error());
  descriptor socket(::socket(where->get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return tl::unexpected(why("a plain socket cannot be opened"));
  prepare(socket.get());  // its time to send bounds connecting too
  if (::connect(socket.get(), where->get(), where->length) != 0)
    return tl::unexpected(why("a plain socket cannot connect"));
  if (auto said = send_all(socket.get(), &token, sizeof token); !said)
    return tl::unexpected(said.error());
  return std::make_unique<raw_socket>(std::move(socket));
}

}  // namespace troupe::cluster::doctor
