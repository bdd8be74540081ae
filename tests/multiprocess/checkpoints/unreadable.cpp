// Loaded into a process (LD_PRELOAD), plays a disk that cannot read the middle of one file: the one
// of which TROUPE_UNREADABLE is another name, from when that name is there. Where the environment
// has TROUPE_UNREADABLE_IN, so it does only in processes whose command lines have that word, with
// TROUPE_UNREADABLE_AFTER only after so many reads in a process, and with TROUPE_UNREADABLE_TIMES
// only so many times there. With TROUPE_UNREADABLE_WRITTEN the file can be read, and somebody
// writes to it before.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

namespace {

bool has_word(const char* word) {
  std::ifstream line("/proc/self/cmdline");
  for (std::string each; std::getline(line, each, '\0');)
    if (each == word) return true;
  return false;
}

bool is_meant_here() {
  static const char* const word = std::getenv("TROUPE_UNREADABLE_IN");
  static const bool meant = word == nullptr || has_word(word);
  return meant;
}

int count_in(const char* name, int otherwise) {
  const char* const count = std::getenv(name);
  return count == nullptr ? otherwise : std::atoi(count);
}

/// Counts the reads.
bool is_its_turn() {
  static const int after = count_in("TROUPE_UNREADABLE_AFTER", 0);
  static const int times = count_in("TROUPE_UNREADABLE_TIMES", std::numeric_limits<int>::max());
  static std::atomic<int> reads = 0;
  const int before = reads.fetch_add(1);
  return before >= after && before - after < times;
}

bool is_unreadable(int descriptor, std::size_t count, off_t from) {
  static const char* const name = std::getenv("TROUPE_UNREADABLE");
  struct stat bad {};
  struct stat of {};
  if (name == nullptr || ::stat(name, &bad) != 0 || ::fstat(descriptor, &of) != 0) return false;
  const auto middle = of.st_size / 2;
  return of.st_dev == bad.st_dev && of.st_ino == bad.st_ino && from <= middle &&
         middle < from + static_cast<off_t>(count) && is_meant_here() && is_its_turn();
}

/// Writes what is there in the middle of the file.
void write_again() {
  const int file = ::open(std::getenv("TROUPE_UNREADABLE"), O_RDWR | O_CLOEXEC);
  struct stat of {};
  char byte = 0;
  if (::fstat(file, &of) != 0 || ::syscall(SYS_pread64, file, &byte, 1, of.st_size / 2) != 1 ||
      ::pwrite(file, &byte, 1, of.st_size / 2) != 1)
    std::abort();
  ::close(file);
}

ssize_t read_from(int descriptor, void* into, std::size_t count, off_t from) {
  static const bool is_written = std::getenv("TROUPE_UNREADABLE_WRITTEN") != nullptr;
  const bool is_hit = is_unreadable(descriptor, count, from);
  if (is_hit && is_written) write_again();
  if (!is_hit || is_written) return ::syscall(SYS_pread64, descriptor, into, count, from);
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
