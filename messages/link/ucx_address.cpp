#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "messages/link/ucx_handles.hpp"

namespace troupe::messages::ucx {

std::string address::text() const {
  char host[INET6_ADDRSTRLEN] = "?";
  if (storage.ss_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(&storage);
    inet_ntop(AF_INET, &four->sin_addr, host, sizeof(host));
    return fmt::format("{}:{}", host, ntohs(four->sin_port));
  }
  const auto* six = reinterpret_cast<const sockaddr_in6*>(&storage);
  inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof(host));
  return fmt::format("[{}]:{}", host, ntohs(six->sin6_port));
}

bool address::is_loopback() const noexcept {
  if (storage.ss_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(&storage);
    return ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  const auto* six = reinterpret_cast<const sockaddr_in6*>(&storage);
  return storage.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

result<address> resolve(const std::string& text, bool to_listen) {
  const auto refuse = [&](const char* why) {
    return fail(errc::address_unavailable, fmt::format("\"{}\" is no address: {}", text, why));
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return refuse("write it as host:port");
  std::string host = text.substr(0, colon);
  const std::string port = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (host.empty()) host = "127.0.0.1";
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos ||
      std::stoi(port) > 65535) {
    return refuse("the port is a number from 0 to 65535");
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0) {
    return refuse(gai_strerror(code));
  }
  // "localhost" is both; version 4 is what a missing host means too.
  const addrinfo* chosen = found;
  while (chosen != nullptr && chosen->ai_family != AF_INET) chosen = chosen->ai_next;
  if (chosen == nullptr) chosen = found;
  address out;
  std::memcpy(&out.storage, chosen->ai_addr, chosen->ai_addrlen);
  out.length = chosen->ai_addrlen;
  freeaddrinfo(found);
  return out;
}

result<void> check_bindable(const address& where, const std::string& text) {
  const int socket_fd = socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) {
    return fail(errc::io_failed, fmt::format("cannot open a socket: {}", std::strerror(errno)));
  }
  const int on = 1;
  setsockopt(socket_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // bind alone succeeds beside a bound socket that also reuses addresses; listen does not.
  const bool ok = bind(socket_fd, where.get(), where.length) == 0 && listen(socket_fd, 1) == 0;
  const int problem = errno;
  close(socket_fd);
  if (ok) return {};
  return fail(errc::address_unavailable,
              fmt::format("cannot listen at {}: {}", text, std::strerror(problem)));
}

}  // namespace troupe::messages::ucx
