#include "messages/link/ucx/segments.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string_view>

#include "messages/descriptor.hpp"
#include "messages/link/private_folder.hpp"

namespace troupe::messages::ucx {
namespace {

/// Where the system gives no leases, one that is older was left.
constexpr std::time_t old_seconds = 60;

/// Whether no process, of whatever container, has the file open or mapped but this one, which has
/// opened it once. A lease to write is given for such a file alone; it ends with the descriptor.
bool is_left(int file, const struct stat& status) {
  // Who opens the file meanwhile has the holder told, with a signal that would end it by default.
  if (::fcntl(file, F_SETSIG, SIGURG) == 0 && ::fcntl(file, F_SETLEASE, F_WRLCK) == 0) return true;
  return errno != EAGAIN && std::time(nullptr) - status.st_mtime > old_seconds;
}

}  // namespace

void prepare_segments() {
  const auto own = fmt::format("/dev/shm/troupe-{}", ::geteuid());
  if (make_private_folder(own)) ::setenv("UCX_POSIX_DIR", own.c_str(), 0);
  ::setenv("UCX_POSIX_RX_BUFS_GROW", "64", 0);  // each peer has a segment of its own
}

void sweep_segments() {
  const char* const folder = std::getenv("UCX_POSIX_DIR");
  if (folder == nullptr || !is_private_folder(folder)) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder), &::closedir);
  if (!entries) return;
  while (const dirent* const entry = ::readdir(entries.get())) {
    if (!std::string_view(entry->d_name).starts_with("ucx_shm_posix_")) continue;
    const auto path = fmt::format("{}/{}", folder, entry->d_name);
    const descriptor file(::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status {};
    if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (is_left(file.get(), status)) ::unlink(path.c_str());
  }
}

}  // namespace troupe::messages::ucx
