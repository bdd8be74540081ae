#include "tests/bench/programs/raw_sealed.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/bench/programs/figures.hpp"

namespace troupe::bench {
namespace {

using namespace messages;

/// Records that are given to the system at once; what is read at once.
constexpr std::size_t most_staged = 256 << 10;
/// Half of which the system uses for its own; as a link inside a machine has.
constexpr int window = 512 << 10;

/// Both sides have the same: nobody else is to be kept out here.
constexpr connection_keys::key known_key{};

void need_call(bool well, const char* what) {
  if (well) return;
  std::perror(what);
  std::_Exit(1);
}

descriptor make_socket() {
  descriptor out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  need_call(static_cast<bool>(out), "socket");
  for (const int option : {SO_SNDBUF, SO_RCVBUF})
    need_call(::setsockopt(out.get(), SOL_SOCKET, option, &window, sizeof(window)) == 0,
              "setsockopt");
  return out;
}

void send_at_once(int socket) {
  const int on = 1;
  need_call(::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0, "setsockopt");
}

sockaddr_in loopback(int port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  out.sin_port = htons(static_cast<std::uint16_t>(port));
  return out;
}

}  // namespace

raw_sealed::raw_sealed()
    : seals_(known_key, record::cipher::use::seals, record::faster_cipher()),
      opens_(known_key, record::cipher::use::opens, record::faster_cipher()),
      out_(most_staged + record::most_bytes + record::overhead_bytes),
      in_(most_staged) {}

void raw_sealed::serve(const std::function<void(const std::string&)>& bound) {
  serves_ = true;
  const descriptor listener = make_socket();
  sockaddr_in where = loopback(0);
  socklen_t length = sizeof(where);
  auto* const name = reinterpret_cast<sockaddr*>(&where);
  need_call(::bind(listener.get(), name, length) == 0, "bind");
  need_call(::listen(listener.get(), 1) == 0, "listen");
  need_call(::getsockname(listener.get(), name, &length) == 0, "getsockname");
  bound(std::to_string(ntohs(where.sin_port)));
  socket_ = descriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  need_call(static_cast<bool>(socket_), "accept");
  send_at_once(socket_.get());
  // As into a tensor of 8 MiB again and again, out of a warm pool.
  tensor_bytes tensor(8 << 20, std::byte{1});
  for (std::size_t at = 0;;) {
    if (at + record::most_bytes > tensor.size()) at = 0;
    const record::head head = hear(tensor.data() + at);
    if (head.bytes == 0) return;
    at += head.bytes;
    if (head.what != record::kind::last) continue;
    say(record::kind::last, tensor.data(), 8);
    flush();
  }
}

void raw_sealed::connect(const std::string& address) {
  socket_ = make_socket();
  const sockaddr_in where = loopback(std::stoi(address));
  need_call(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0,
            "connect");
  send_at_once(socket_.get());
}

void raw_sealed::say(record::kind what, const std::byte* data, std::size_t bytes) {
  staged_ += seals_.seal(what, std::span(data, bytes), out_.data() + staged_);
  if (staged_ >= most_staged) flush();
}

void raw_sealed::flush() {
  for (std::size_t sent = 0; sent < staged_;) {
    const auto took = ::send(socket_.get(), out_.data() + sent, staged_ - sent, MSG_NOSIGNAL);
    need_call(took > 0, "send");
    sent += static_cast<std::size_t>(took);
  }
  staged_ = 0;
}

void raw_sealed::need_input(std::size_t bytes) {
  while (end_ - begin_ < bytes) {
    if (begin_ == end_) begin_ = end_ = 0;
    if (end_ == in_.size()) {
      std::memmove(in_.data(), in_.data() + begin_, end_ - begin_);
      end_ -= std::exchange(begin_, 0);
    }
    const auto got = ::recv(socket_.get(), in_.data() + end_, in_.size() - end_, 0);
    if (got == 0 && serves_) std::_Exit(0);  // the client has left
    if (got == 0) errno = ECONNRESET;
    need_call(got > 0, "recv");
    end_ += static_cast<std::size_t>(got);
  }
}

record::head raw_sealed::hear(std::byte* to) {
  need_input(record::head_bytes);
  const auto head = record::read_head(std::span(in_).subspan(begin_).first<record::head_bytes>());
  need_call(head.has_value(), "a record");
  const std::size_t whole = head->bytes + record::overhead_bytes;
  need_input(whole);
  need_call(opens_.open(std::span(in_).subspan(begin_, whole), to), "the seal");
  begin_ += whole;
  return *head;
}

void raw_sealed::ping() {
  std::byte small[8] = {};
  say(record::kind::last, small, sizeof(small));
  flush();
  hear(small);
}

double raw_sealed::round_trip_us(int count) {
  const stopwatch watch;
  for (int i = 0; i < count; ++i) ping();
  return watch.seconds() / count * 1e6;
}

double raw_sealed::megabytes_per_second(std::size_t bytes, int count) {
  const tensor_bytes data(bytes, std::byte{1});
  const stopwatch watch;
  for (int i = 0; i < count; ++i) {
    for (std::size_t at = 0; at < bytes; at += record::most_bytes)
      say(record::kind::body, data.data() + at, std::min(bytes - at, record::most_bytes));
  }
  ping();
  return static_cast<double>(bytes) * count / watch.seconds() / 1e6;
}

}  // namespace troupe::bench
