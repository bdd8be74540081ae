#include "cluster/hosts/host_addresses.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <memory>

#include "cluster/hosts/network_range.hpp"
#include "messages/base/host_name.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {
namespace {

using address_list = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

std::string numeric(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes =
      address->sa_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
          : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return ::inet_ntop(address->sa_family, bytes, text.data(), text.size()) != nullptr ? text.data()
                                                                                     : "";
}

std::string without_brackets(const std::string& host) {
  return host.size() > 2 && host.front() == '[' && host.back() == ']'
             ? host.substr(1, host.size() - 2)
             : host;
}

result<address_list> resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(without_brackets(host).c_str(), "9", &hints, &found);
  address_list list(found, &::freeaddrinfo);
  if (code != 0)
    return fail(errc::address_unavailable,
                "\"" + host + "\" stands for no address here: " + ::gai_strerror(code));
  return list;
}

const addrinfo* preferred(const address_list& list) {
  for (const auto* each = list.get(); each != nullptr; each = each->ai_next)
    if (each->ai_family == AF_INET) return each;
  return list.get();
}

/// Our address on the way to a peer: nothing is sent.
result<std::string> address_towards(const std::string& peer) {
  const auto list = resolve(peer);
  if (!list) return tl::unexpected(list.error());
  const auto* to = preferred(*list);
  const descriptor socket(::socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (!socket || ::connect(socket.get(), to->ai_addr, to->ai_addrlen) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0)
    return fail(errc::address_unavailable, "there is no way from here to " + peer + " (" +
                                               numeric(to->ai_addr) + "): " + std::strerror(errno) +
                                               "; see the routes of this machine");
  return numeric(reinterpret_cast<const sockaddr*>(&own));
}

result<std::string> address_in(const network_range& range, const std::string& text) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0)
    return fail(errc::address_unavailable,
                std::string("this machine's addresses cannot be read: ") + std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(found, &::freeifaddrs);
  std::string others;
  for (const auto* each = list.get(); each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const auto family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const auto own = numeric(each->ifa_addr);
    if (range.contains(own)) return own;
    if (!is_loopback_address(own)) others += (others.empty() ? "" : ", ") + own;
  }
  return fail(errc::address_unavailable,
              "no interface of " + host_name() + " has an address in the network " + text +
                  " (it has " + (others.empty() ? "none" : others) +
                  "); name a network with an address of that host, or the address");
}

unsigned prefix_of(const sockaddr* mask) {
  const bool is_version_6 = mask->sa_family == AF_INET6;
  std::array<std::uint8_t, 16> bytes{};
  if (is_version_6)
    std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr, 16);
  else
    std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in*>(mask)->sin_addr, 4);
  unsigned bits = 0;
  for (const auto each : bytes) bits += static_cast<unsigned>(std::popcount(each));
  return bits;
}

/// Whether other hosts may reach an interface's address.
bool is_for_others(const ifaddrs& each) {
  if (each.ifa_addr == nullptr || each.ifa_netmask == nullptr) return false;
  const auto family = each.ifa_addr->sa_family;
  if ((family != AF_INET && family != AF_INET6) || (each.ifa_flags & IFF_UP) == 0) return false;
  const auto own = numeric(each.ifa_addr);
  return kind_of(own) == address_kind::usual && !own.starts_with("169.254.");
}

/// Why others cannot reach what is to be listened at.
std::string words_on_loopback(const std::string& host, const std::string& own,
                              const std::string& peer) {
  const std::string what =
      kind_of(host) == address_kind::name
          ? "stands for " + own + " here, which no other host reaches (see /etc/hosts), but "
          : "is an address that only its own host reaches, but ";
  return "\"" + host + "\" " + what + peer + " is another one; name an address of the network";
}

result<std::string> named_address(const std::string& wanted, const std::string& peer) {
  const std::string host = host_of_wanted(wanted);
  const auto own = address_of_host(host);
  if (!own) return own;
  const auto other = address_of_host(peer);
  if (other && is_loopback_address(*own) && !is_loopback_address(*other))
    return fail(errc::address_unavailable, words_on_loopback(host, *own, peer));
  if (has_port(wanted))
    return (own->find(':') == std::string::npos ? *own : "[" + *own + "]") +
           wanted.substr(wanted.rfind(':'));
  return with_port(*own, 0);
}

}  // namespace

std::vector<std::string> interface_addresses() {
  constexpr std::size_t most = 64;
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(found, &::freeifaddrs);
  std::vector<std::string> out;
  for (const auto* each = list.get(); each != nullptr && out.size() < most; each = each->ifa_next)
    if (is_for_others(*each))
      out.push_back(numeric(each->ifa_addr) + "/" + std::to_string(prefix_of(each->ifa_netmask)));
  return out;
}

std::string host_of_user(const std::string& text) {
  return text.substr(text.rfind('@') + 1);
}

bool means_this_machine(const std::string& host) {
  return host == "localhost" || host == host_name() || is_loopback_address(host);
}

bool is_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  const std::string host = text.substr(0, colon);
  const bool bracketed = host.front() == '[' && host.back() == ']' && host.size() > 2;
  if (!bracketed && host.find_first_of("[]: \t") != std::string::npos) return false;
  unsigned port = 0;
  const char* begin = text.data() + colon + 1;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(begin, end, port);
  return begin != end && stop == end && status == std::errc() && port <= 65535;
}

bool is_unix_socket(const std::string& address) {
  return address.starts_with("unix:/");
}

bool is_loopback(const std::string& address) {
  if (is_unix_socket(address)) return true;
  const std::string host = address.substr(0, address.rfind(':'));
  if (host.empty() || host == "localhost" || host == "[::1]") return true;
  in_addr four{};
  return ::inet_pton(AF_INET, host.c_str(), &four) == 1 && ntohl(four.s_addr) >> 24 == 127;
}

bool has_port(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) return false;
  return text.find(':') == colon || text[colon - 1] == ']';
}

std::string host_of_wanted(const std::string& wanted) {
  return has_port(wanted) ? host_of(wanted) : without_brackets(wanted);
}

std::string host_of(const std::string& address) {
  return without_brackets(address.substr(0, address.rfind(':')));
}

result<std::string> address_of_host(const std::string& host) {
  return resolve(host).map(
      [](const address_list& list) { return numeric(preferred(list)->ai_addr); });
}

result<std::string> listen_address(const std::string& wanted, const std::string& peer) {
  const auto any_port = [](const std::string& host) { return with_port(host, 0); };
  if (wanted.empty()) return address_towards(peer).map(any_port);
  if (wanted.find('/') == std::string::npos) return named_address(wanted, peer);
  const auto range = network_range::parse(wanted);
  if (!range) return fail(errc::address_unavailable, "\"" + wanted + "\" is no network");
  return address_in(*range, wanted).map(any_port);
}

}  // namespace troupe::cluster
