#include "engine/base/thread_limit.hpp"

#include <sys/resource.h>

namespace troupe::engine {

std::string raise_threads(std::uint64_t more) {
  rlimit limit{};
  const bool is_limited = ::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return "(ulimit -u" + (is_limited ? " " + std::to_string(limit.rlim_cur + more) : "") +
         ", or the machine's limit)";
}

}  // namespace troupe::engine
