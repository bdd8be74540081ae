// Loaded into a process (LD_PRELOAD), plays a disk that cannot read the middle of one file: the one
// of which TROUPE_UNREADABLE is another name, from when that name is there.

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>

namespace {

bool is_unreadable(int descriptor, std::size_t count, off_t from) {
  static const char* const name = std::getenv("TROUPE_UNREADABLE");
  struct stat bad {};
  struct stat of {};
  if (name == nullptr || ::stat(name, &bad) != 0 || ::fstat(descriptor, &of) != 0) return false;
  const auto middle = of.st_size / 2;
  return of.st_dev == bad.st_dev && of.st_ino == bad.st_ino && from <= middle &&
         middle < from + static_cast<off_t>(count);
}

ssize_t read_from(int descriptor, void* into, std::size_t count, off_t from) {
  if (!is_unreadable(descriptor, count, from))
    return ::syscall(SYS_pread64, descriptor, into, count, from);
  errno = EIO;
  return -1;
}

}  // namespace

extern "C" ssize_t pread(int descriptor, void* into, std::size_t count, off_t from) {
  return read_from(descriptor, into, count, from);
}

extern "C" ssize_t pread64(int descriptor, void* into, std::size_t count, off64_t from) {
  return read_from(descriptor, into, count, from);
}
