#pragma once

#include <string>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The numeric address that a host's name stands for here; IP version 4 where there is one. `host`
/// may be an address itself, in brackets or not. May block. Errors: address_unavailable.
[[nodiscard]] result<std::string> address_of_host(const std::string& host);

/// Where this process is to listen so that `peer` (a host, without port) reaches it, as
/// "HOST:PORT". `wanted`: "HOST" or "HOST:PORT", a network ("10.0.0.0/8", for the interface in it),
/// or empty for the address from which this machine reaches the peer; the port is any free one
/// where none is named. Errors: address_unavailable with what to do, also where a name stands for
/// an address of this machine alone (127.0.1.1 in /etc/hosts) and the peer is elsewhere.
[[nodiscard]] result<std::string> listen_address(const std::string& wanted,
                                                 const std::string& peer);

/// The addresses of this machine's interfaces that are up, each with the length of its network's
/// prefix ("10.0.0.2/24"), but for loopback and what means nothing beyond one link: the first 64.
/// Empty also where the system does not tell them.
[[nodiscard]] std::vector<std::string> interface_addresses();

/// The host in what ssh is given, "USER@HOST" or "HOST".
[[nodiscard]] std::string host_of_user(const std::string& text);

/// Whether a host stands for this machine on purpose, and not because of a mistake in /etc/hosts.
[[nodiscard]] bool means_this_machine(const std::string& host);

/// Whether "HOST:PORT" (or "[V6]:PORT") can be an address.
[[nodiscard]] bool is_address(const std::string& text);

/// Whether an address is "unix:/PATH".
[[nodiscard]] bool is_unix_socket(const std::string& address);

/// Whether an address is one that only this machine reaches: "localhost", 127.x.x.x, [::1]. Any
/// other name counts as one that others reach.
[[nodiscard]] bool is_loopback(const std::string& address);

/// Whether a text ends in a port, and is no bare address of IP version 6.
[[nodiscard]] bool has_port(const std::string& text);

/// "HOST" of "HOST" or "HOST:PORT", without brackets.
[[nodiscard]] std::string host_of_wanted(const std::string& wanted);

/// "HOST" of "HOST:PORT", without brackets.
[[nodiscard]] std::string host_of(const std::string& address);

}  // namespace troupe::cluster
