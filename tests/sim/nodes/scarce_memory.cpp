#include "tests/sim/nodes/scarce_memory.hpp"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TROUPE_HAS_SANITIZER 1
#else
#define TROUPE_HAS_SANITIZER 0
#endif

namespace troupe::tests::scarce_memory {
namespace {

constexpr std::size_t nothing = ~std::size_t{0};

std::atomic<std::size_t> least_counted = nothing;
std::atomic<std::uint64_t> left = 0;  // blocks up to the refused one
std::atomic<bool> was_refused = false;
thread_local bool is_exempt = false;

#if !TROUPE_HAS_SANITIZER
/// Whether that code is LibTorch's allocator or ours: others may not bear a refusal.
bool counts(void* code) {
  dl_find_object found{};
  if (_dl_find_object(code, &found) != 0) return false;
  const char* const name = found.dlfo_link_map->l_name;
  return *name == '\0' || std::strstr(name, "libc10") != nullptr;
}

bool is_refused(std::size_t bytes, void* caller) {
  if (bytes < least_counted.load(std::memory_order_relaxed) || is_exempt || !counts(caller))
    return false;
  if (left.fetch_sub(1) != 1) return false;
  least_counted = nothing;
  was_refused = true;
  return true;
}
#endif

}  // namespace

void refuse(std::uint64_t number, std::size_t least) {
  was_refused = false;
  left = number;
  least_counted = least;
}

bool relieve() {
  least_counted = nothing;
  return was_refused;
}

void exempt_this_thread() noexcept {
  is_exempt = true;
}

bool is_here() noexcept {
  return !TROUPE_HAS_SANITIZER;
}

}  // namespace troupe::tests::scarce_memory

#if !TROUPE_HAS_SANITIZER
extern "C" int posix_memalign(void** block, std::size_t alignment, std::size_t bytes) {
  using namespace troupe::tests;
  using function = int (*)(void**, std::size_t, std::size_t);
  static const auto real = reinterpret_cast<function>(dlsym(RTLD_NEXT, "posix_memalign"));
  if (scarce_memory::is_refused(bytes, __builtin_return_address(0))) return ENOMEM;
  return real(block, alignment, bytes);
}
#endif
