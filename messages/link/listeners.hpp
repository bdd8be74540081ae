#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "messages/base/error.hpp"

namespace troupe::messages {

/// Who listens at which address of a network inside one process. One thread.
template <class Node>
class listeners {
 public:
  /// Gives the address: of the loopback without a host, with a free port for 0 or where there is no
  /// address. Errors: address_unavailable.
  [[nodiscard]] result<std::string> add(const std::string& wanted,
                                        const std::shared_ptr<Node>& node) {
    const std::string text = wanted.empty() ? ":0" : wanted;
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos)
      return fail(errc::address_unavailable,
                  "\"" + text + "\" is no address: write it as host:port");
    std::string port = text.substr(colon + 1);
    if (port == "0") port = std::to_string(next_port_++);
    const auto address = (colon == 0 ? "127.0.0.1" : text.substr(0, colon)) + ":" + port;
    if (!nodes_.try_emplace(address, node).second)
      return fail(errc::address_unavailable,
                  "cannot listen at " + address + ": Address already in use");
    return address;
  }

  void remove(const std::string& address) { nodes_.erase(address); }

  /// Null: nobody listens there.
  [[nodiscard]] std::shared_ptr<Node> find(const std::string& address) const {
    const auto found = nodes_.find(address);
    return found == nodes_.end() ? nullptr : found->second.lock();
  }

 private:
  std::map<std::string, std::weak_ptr<Node>> nodes_;
  std::uint64_t next_port_ = 1;
};

}  // namespace troupe::messages
