#include "engine/collective/nccl/sockets.hpp"

#include <stdlib.h>

#include <mutex>

namespace troupe::engine::nccl {
namespace {

// One for the process, as the environment and NCCL's own state are.
std::mutex claim_mutex;
std::optional<reach> first_claim;  // guarded by claim_mutex

}  // namespace

result<void> claim_sockets(reach wanted) {
  const std::scoped_lock lock(claim_mutex);
  if (!first_claim) {
    if (wanted == reach::loopback) {
      ::setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
      ::unsetenv("NCCL_COMM_ID");
    }
    first_claim = wanted;
  }
  if (wanted == reach::loopback && *first_claim == reach::network)
    return fail(errc::transport_missing,
                "NCCL's sockets in this process have been on the network since its first "
                "communicator, and these ranks are to keep to loopback; start the process again");
  return {};
}

std::optional<reach> sockets_of_process() {
  const std::scoped_lock lock(claim_mutex);
  return first_claim;
}

}  // namespace troupe::engine::nccl
