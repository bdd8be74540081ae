#pragma once

#include <fcntl.h>

#include <memory>

#include "messages/descriptor.hpp"
#include "messages/link/shared_memory.hpp"

namespace troupe::messages {

/// Another descriptor of that memory, as it would be handed over.
inline descriptor handed_over(const shared_memory& memory) {
  return descriptor(::fcntl(memory.location().descriptor, F_DUPFD_CLOEXEC, 0));
}

/// That memory as a peer sees it.
inline std::shared_ptr<borrowed_memory> own_view(const shared_memory& memory) {
  return borrowed_memory::open(memory.location(), handed_over(memory)).value();
}

}  // namespace troupe::messages
