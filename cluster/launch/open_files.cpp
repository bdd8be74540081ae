#include "cluster/launch/open_files.hpp"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace troupe::cluster {

result<open_files_limit> limit_on_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    return open_files_limit{limit.rlim_cur, limit.rlim_max};
  return fail(errc::io_failed,
              std::string("the limit on open files cannot be read: ") + std::strerror(errno));
}

std::string raise_open_files(std::uint64_t needed) {
  const auto count = std::to_string(needed);
  return "raise the limit on open files (ulimit -n " + count + "; LimitNOFILE=" + count +
         " in a unit of systemd, nofile in /etc/security/limits.conf)";
}

result<void> allow_open_files(std::uint64_t needed) {
  const auto limit = limit_on_open_files();
  if (!limit) return tl::unexpected(limit.error());
  if (limit->now >= needed) return {};
  const rlimit raised{needed, limit->most};
  if (needed <= limit->most && ::setrlimit(RLIMIT_NOFILE, &raised) == 0) return {};
  return fail(errc::io_failed, "this run needs about " + std::to_string(needed) +
                                   " open files, but a process may have " +
                                   std::to_string(limit->most) + "; " + raise_open_files(needed));
}

}  // namespace troupe::cluster
