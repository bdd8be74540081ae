// Loaded into a process (LD_PRELOAD), has its clock of the day run a day ahead.

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern "C" int clock_gettime(clockid_t which, timespec* into) noexcept {
  const auto code = static_cast<int>(::syscall(SYS_clock_gettime, which, into));
  if (code == 0 && which == CLOCK_REALTIME) into->tv_sec += 86'400;
  return code;
}
