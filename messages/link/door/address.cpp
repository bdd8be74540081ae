#include "messages/link/door/address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>

namespace troupe::messages::door {

namespace {

constexpr std::string_view unix_scheme = "unix:";

std::string ip_of(const sockaddr_storage& storage) {
  char host[INET6_ADDRSTRLEN] = "?";
  if (storage.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr, host,
              sizeof(host));
    return host;
  }
  inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr, host,
            sizeof(host));
  return fmt::format("[{}]", host);
}

}  // namespace

std::string address::text() const {
  if (is_unix())
    return fmt::format("{}{}", unix_scheme,
                       reinterpret_cast<const sockaddr_un*>(&storage)->sun_path);
  const bool four = storage.ss_family == AF_INET;
  const auto port = four ? reinterpret_cast<const sockaddr_in*>(&storage)->sin_port
                         : reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port;
  return fmt::format("{}:{}", ip_of(storage), ntohs(port));
}

std::string address::host() const {
  return is_unix() ? std::string(unix_scheme) : ip_of(storage);
}

bool address::is_local() const noexcept {
  if (is_unix()) return true;
  if (storage.ss_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(&storage);
    return ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  const auto* six = reinterpret_cast<const sockaddr_in6*>(&storage);
  return storage.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

result<address> unix_address(const std::string& path) {
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(where.sun_path) || path.front() != '/')
    return fail(errc::address_unavailable,
                fmt::format("\"{}{}\" is no address: write the whole path of a socket, of at most "
                            "{} bytes",
                            unix_scheme, path, sizeof(where.sun_path) - 1));
  std::memcpy(where.sun_path, path.data(), path.size());
  address out;
  std::memcpy(&out.storage, &where, sizeof(where));
  out.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return out;
}

result<address> resolve(const std::string& text, bool to_listen) {
  if (text.starts_with(unix_scheme)) return unix_address(text.substr(unix_scheme.size()));
  const auto refuse = [&](const char* why) {
    return fail(errc::address_unavailable, fmt::format("\"{}\" is no address: {}", text, why));
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return refuse("write it as host:port");
  std::string host = text.substr(0, colon);
  const std::string port = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  if (host.empty()) host = "127.0.0.1";
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos ||
      std::stoi(port) > 65535)
    return refuse("the port is a number from 0 to 65535");
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0)
    return refuse(gai_strerror(code));
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

}  // namespace troupe::messages::door
