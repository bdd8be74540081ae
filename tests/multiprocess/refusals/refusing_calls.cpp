// Loaded before the program's own libraries (LD_PRELOAD), it plays a system that has run out: in
// the process with the argument TROUPE_REFUSE_IN (in all, where that is not set)
// - no thread is started beyond TROUPE_MOST_THREADS, as under ulimit -u,
// - no block of TROUPE_LEAST_REFUSED bytes or more is allocated for a tensor.
// And it counts calls, of which one may fail: call_places.hpp.

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/multiprocess/refusals/call_places.hpp"
#include "tests/multiprocess/refusals/next_function.hpp"

namespace {

using troupe::tests::is_to_fail;
using troupe::tests::next;
using troupe::tests::reason_of_failure;

/// What the variable says, if this process is meant; else 0.
std::size_t limit_from(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return 0;
  const char* const where = std::getenv("TROUPE_REFUSE_IN");
  if (where != nullptr) {
    std::ifstream file("/proc/self/cmdline");
    const std::string all(std::istreambuf_iterator<char>(file), {});
    const std::string argument = std::string(1, '\0') + where + std::string(1, '\0');
    if (all.find(argument) == std::string::npos) return 0;
  }
  return std::strtoull(text, nullptr, 10);
}

std::size_t threads() {
  DIR* const folder = opendir("/proc/self/task");
  if (folder == nullptr) return 0;
  std::size_t count = 0;
  while (const dirent* const entry = readdir(folder)) count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(folder);
  return count;
}

/// Whether that code is LibTorch's: the link's buffers come from the same call. (dladdr would look
/// for a symbol too, for a millisecond.)
bool is_of_torch(void* code) {
  dl_find_object found{};
  return _dl_find_object(code, &found) == 0 &&
         std::strstr(found.dlfo_link_map->l_name, "libc10") != nullptr;
}

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*run)(void*),
                              void* with) {
  static const auto real = next<decltype(&pthread_create)>("pthread_create");
  static const std::size_t most = limit_from("TROUPE_MOST_THREADS");
  if (is_to_fail("pthread_create")) return reason_of_failure();
  return most > 0 && threads() >= most ? EAGAIN : real(thread, how, run, with);
}

// What LibTorch allocates tensors with.
extern "C" int posix_memalign(void** block, std::size_t alignment, std::size_t bytes) {
  static const auto real = next<decltype(&posix_memalign)>("posix_memalign");
  static const std::size_t least = limit_from("TROUPE_LEAST_REFUSED");
  void* const caller = __builtin_return_address(0);
  if (is_of_torch(caller)) {
    if (least > 0 && bytes >= least) return ENOMEM;
    if (is_to_fail("posix_memalign", caller)) return reason_of_failure();
  }
  return real(block, alignment, bytes);
}
