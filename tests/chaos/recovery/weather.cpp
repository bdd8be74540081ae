// What a process of stormy_pipeline gets from the system when it writes checkpoints and asks for
// the time of day, as its run's weather says (marks.hpp).

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/chaos/recovery/marks.hpp"
#include "tests/multiprocess/refusals/next_function.hpp"

namespace {

using troupe::chaos::disk_mood;
using troupe::chaos::weather;

const weather* map_weather() {
  const char* const file = std::getenv(troupe::chaos::weather_file);
  return file == nullptr ? nullptr : troupe::chaos::map_shared<weather>(file);
}

const weather* outside() {
  static const weather* const mapped = map_weather();
  return mapped;
}

bool is_of_checkpoints(int descriptor) {
  std::array<char, 512> path{};
  const auto name = "/proc/self/fd/" + std::to_string(descriptor);
  const auto length = ::readlink(name.c_str(), path.data(), path.size());
  return length > 0 &&
         std::string_view(path.data(), static_cast<std::size_t>(length)).find("/kept/") !=
             std::string_view::npos;
}

disk_mood mood_for(int descriptor) {
  const auto* const now = outside();
  if (now == nullptr || now->disk == disk_mood::right) return disk_mood::right;
  return is_of_checkpoints(descriptor) ? now->disk.load() : disk_mood::right;
}

long fail() {
  errno = EIO;
  return -1;
}

}  // namespace

extern "C" ssize_t write(int descriptor, const void* bytes, std::size_t count) {
  const auto mood = mood_for(descriptor);
  if (mood == disk_mood::fails) return fail();
  if (mood == disk_mood::halves)
    count = std::max<std::size_t>(count / 2, std::min<std::size_t>(count, 1));
  return ::syscall(SYS_write, descriptor, bytes, count);
}

extern "C" int fsync(int descriptor) {
  if (mood_for(descriptor) == disk_mood::fails_late) return static_cast<int>(fail());
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

extern "C" int clock_gettime(clockid_t which, timespec* into) noexcept {
  static const auto real = troupe::tests::next<int (*)(clockid_t, timespec*)>("clock_gettime");
  const int code = real(which, into);
  if (code == 0 && which == CLOCK_REALTIME)
    if (const auto* const now = outside()) into->tv_sec += now->clock_s;
  return code;
}
