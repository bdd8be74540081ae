#include "engine/collective/nccl/sockets.hpp"

#include <stdlib.h>

#include <mutex>

namespace troupe::engine::nccl {
namespace {

struct first_claim {
  std::mutex mutex;
  std::optional<reach> decided;  // guarded by mutex
};

/// One for the process, as the environment and NCCL's own state are.
first_claim& of_process() {
  static first_claim one;
  return one;
}

void keep_on_loopback() {
  ::setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
  ::unsetenv("NCCL_COMM_ID");
}

}  // namespace

result<void> claim_sockets(reach wanted) {
  auto& first = of_process();
  const std::scoped_lock lock(first.mutex);
  if (!first.decided) {
    if (wanted == reach::loopback) keep_on_loopback();
    first.decided = wanted;
  }
  if (wanted == reach::loopback && *first.decided == reach::network)
    return fail(errc::transport_missing,
                "NCCL's sockets in this process have been on the network since its first "
                "communicator, and these ranks are to keep to loopback; start the process again");
  return {};
}

std::optional<reach> sockets_of_process() {
  auto& first = of_process();
  const std::scoped_lock lock(first.mutex);
  return first.decided;
}

}  // namespace troupe::engine::nccl
