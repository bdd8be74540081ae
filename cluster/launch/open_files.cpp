#include "cluster/launch/open_files.hpp"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace troupe::cluster {

result<void> allow_open_files(std::uint64_t needed) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return fail(errc::io_failed,
                std::string("the limit on open files cannot be read: ") + std::strerror(errno));
  if (limit.rlim_cur >= needed) return {};
  const rlimit raised{needed, limit.rlim_max};
  if (needed <= limit.rlim_max && ::setrlimit(RLIMIT_NOFILE, &raised) == 0) return {};
  return fail(errc::io_failed, "this run needs about " + std::to_string(needed) +
                                   " open files, but a process may have " +
                                   std::to_string(limit.rlim_max) +
                                   "; raise the limit on open files (ulimit -n)");
}

}  // namespace troupe::cluster
