#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "messages/descriptor.hpp"
#include "messages/link/door/address.hpp"
#include "messages/link/door/listener.hpp"

namespace troupe::messages::testing {

using bytes_view = std::span<const std::byte>;

/// A connected socket, TCP's or of the file system, over which a test says what it likes. Writing
/// blocks; reading takes what has come.
class plain_socket {
 public:
  explicit plain_socket(const std::string& address) : plain_socket(dialled(address)) {}
  explicit plain_socket(descriptor connected) : socket_(std::move(connected)) {
    ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) & ~O_NONBLOCK);
  }

  /// False when the other side has left. `handed` goes with the first byte.
  bool say(bytes_view bytes, int handed = -1) {
    while (!bytes.empty()) {
      const auto sent = send_some(bytes, std::exchange(handed, -1));
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
    return true;
  }

  /// Appends what has come, after waiting so long for it; false: nothing came.
  bool hear(std::vector<std::byte>& to, int wait_ms) {
    pollfd ready{socket_.get(), POLLIN, 0};
    if (is_over_ || ::poll(&ready, 1, wait_ms) <= 0) return false;
    std::array<std::byte, 65536> bytes;
    const auto got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    is_over_ = got <= 0;
    if (got > 0) to.insert(to.end(), bytes.begin(), bytes.begin() + got);
    return true;
  }

  /// The other side has ended the connection, as `hear` found.
  [[nodiscard]] bool is_over() const { return is_over_; }
  [[nodiscard]] int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }

 private:
  static descriptor dialled(const std::string& address) {
    const door::address where = door::resolve(address, false).value();
    for (;;) {
      auto made = door::dial(where);
      if (!made && made.error().code == errc::timed_out) {
        std::this_thread::yield();  // its queue is full just now
        continue;
      }
      REQUIRE(made);
      pollfd ready{made->get(), POLLOUT, 0};
      ::poll(&ready, 1, 5000);
      REQUIRE(door::check_dialled(made->get()));
      return std::move(*made);
    }
  }

  ssize_t send_some(bytes_view bytes, int handed) {
    iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    union {
      cmsghdr align;
      char bytes[CMSG_SPACE(sizeof(int))];
    } control{};
    if (handed >= 0) {
      message.msg_control = control.bytes;
      message.msg_controllen = sizeof(control.bytes);
      cmsghdr* const rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &handed, sizeof(int));
    }
    return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  }

  descriptor socket_;
  bool is_over_ = false;
};

}  // namespace troupe::messages::testing
