#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace troupe::chaos {

/// A file that holds such a thing, mapped for as long as the process lives, or until it is
/// unmapped. `more`: O_CREAT: it is made where it is not there. Null: it is not there, or not
/// whole.
template <class Thing>
Thing* map_shared(const char* file, int more = 0) {
  const int open = ::open(file, O_RDWR | O_CLOEXEC | more, 0600);
  if (open < 0) return nullptr;
  struct stat about {};
  const bool is_whole = ((more & O_CREAT) == 0 || ::ftruncate(open, sizeof(Thing)) == 0) &&
                        ::fstat(open, &about) == 0 && about.st_size >= off_t{sizeof(Thing)};
  void* const at = is_whole
                       ? ::mmap(nullptr, sizeof(Thing), PROT_READ | PROT_WRITE, MAP_SHARED, open, 0)
                       : MAP_FAILED;
  ::close(open);
  return at == MAP_FAILED ? nullptr : static_cast<Thing*>(at);
}

/// The variable that names the folder of all processes' marks, a file each by the process's name.
inline constexpr const char* marks_folder = "TROUPE_MARKS";

/// What a stage computes. An order is obeyed when its process next begins that, or ends it.
enum class work : std::uint32_t { none, forward, backward, update, evaluation };

/// What a process does to itself.
enum class deed : std::uint32_t {
  kill,   ///< SIGKILL
  abort,  ///< SIGABRT
  stop,   ///< SIGSTOP
  exit,   ///< It exits with `code_of_exit`.
  fail,   ///< Its arithmetic throws.
  gorge,  ///< It takes memory until somebody ends it.
};
inline constexpr int code_of_exit = 7;

/// A file that a process of stormy_pipeline and whoever disturbs it have both mapped.
struct marks {
  std::atomic<work> at;  ///< Of the order; none: there is no order.
  std::atomic<deed> what;
  std::atomic<std::uint32_t> at_end;     ///< 1: when that work ends, not when it begins.
  std::atomic<std::uint32_t> delay_us;   ///< After that, while the process computes on.
  std::atomic<std::uint64_t> obeyed_ns;  ///< When it was; of the steady clock; 0: not yet.
};

/// The variable that names the file of what all processes of a run live in.
inline constexpr const char* weather_file = "TROUPE_WEATHER";

/// How writes to checkpoints end.
enum class disk_mood : std::uint32_t {
  right,
  fails,       ///< A write fails with EIO.
  fails_late,  ///< A sync does.
  halves,      ///< A write takes half of what it is given.
};

/// A file that all processes of a run and whoever disturbs them have mapped.
struct weather {
  std::atomic<disk_mood> disk;
  std::atomic<std::int64_t> clock_s;  ///< How far the clock of the day is ahead.
};

}  // namespace troupe::chaos
