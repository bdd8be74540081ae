#pragma once

#include <string>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Where a process of a node listens for others.
struct listening {
  std::string process;  ///< "stage-1"
  std::string node;     ///< "beta"
  std::string machine;  ///< The address at which its host was reached.
  std::string address;  ///< "172.17.0.1:40123"

  bool operator==(const listening&) const = default;
};

/// Whether no two machines listen at one address, as they do where both have a bridge of their own
/// with it: what is sent there stays on the machine that sends it. Errors: address_unavailable
/// naming both, the address and what to do.
[[nodiscard]] result<void> check_addresses(const std::vector<listening>& all);

}  // namespace troupe::cluster
