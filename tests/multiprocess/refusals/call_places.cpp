#include "tests/multiprocess/refusals/call_places.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unwind.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

// Nothing here allocates: it runs inside of allocators, and before most constructors.
namespace troupe::tests {
namespace {

constexpr std::size_t depth = 6;  // of the frames that make a place

enum class state : int { untouched, starting, off, on };

struct choice {
  const char* call = nullptr;
  std::uint64_t place = 0;  // 0: any
  std::uint32_t number = 0;
  int reason = 0;
};

std::atomic<state> now{state::untouched};
call_record* record = nullptr;
choice wanted;
thread_local bool is_counting = false;

/// The word behind --node-name on this process's command line.
void read_own_name(char* name, std::size_t room) {
  std::strncpy(name, "program", room - 1);
  char words[4096];
  const int file = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  const auto count = ::read(file, words, sizeof words - 1);
  ::close(file);
  if (count <= 0) return;
  words[count] = '\0';
  for (const char* word = words; word < words + count; word += std::strlen(word) + 1) {
    if (std::strcmp(word, "--node-name") != 0) continue;
    const char* const next = word + std::strlen(word) + 1;
    if (next < words + count) std::strncpy(name, next, room - 1);
  }
}

call_record* make_record(const char* folder) {
  char path[512];
  std::snprintf(path, sizeof path, "%s/%d", folder, static_cast<int>(::getpid()));
  const int file = ::open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (::ftruncate(file, sizeof(call_record)) == 0)
    memory = ::mmap(nullptr, sizeof(call_record), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) return nullptr;
  auto* made = static_cast<call_record*>(memory);  // all zero, as a new file is
  read_own_name(made->process, sizeof made->process);
  return made;
}

void choose() {
  const char* const where = std::getenv("TROUPE_FAIL_IN");
  const char* const call = std::getenv("TROUPE_FAIL_CALL");
  if (where == nullptr || call == nullptr || std::strcmp(where, record->process) != 0) return;
  const char* const number = std::getenv("TROUPE_FAIL_NUMBER");
  const char* const place = std::getenv("TROUPE_FAIL_PLACE");
  const char* const reason = std::getenv("TROUPE_FAIL_ERRNO");
  wanted = {.call = call,
            .place = place != nullptr ? std::strtoull(place, nullptr, 16) : 0,
            .number = number != nullptr ? static_cast<std::uint32_t>(std::atoi(number)) : 1,
            .reason = reason != nullptr ? std::atoi(reason) : EIO};
}

void start() {
  auto before = state::untouched;
  if (!now.compare_exchange_strong(before, state::starting)) return;
  const char* const folder = std::getenv("TROUPE_CALLS");
  record = folder != nullptr ? make_record(folder) : nullptr;
  if (record != nullptr) choose();
  now = record != nullptr ? state::on : state::off;
}

struct frame {
  const char* file = "";
  std::uintptr_t offset = 0;
};

/// The innermost frames outside of this library.
struct trace {
  frame frames[depth];
  std::size_t count = 0;

  [[nodiscard]] std::uint64_t hash() const {
    std::uint64_t made = 14695981039346656037U;  // FNV-1a
    const auto mix = [&made](const void* bytes, std::size_t size) {
      for (std::size_t i = 0; i < size; ++i)
        made = (made ^ static_cast<const unsigned char*>(bytes)[i]) * 1099511628211U;
    };
    for (std::size_t i = 0; i < count; ++i) {
      mix(frames[i].file, std::strlen(frames[i].file));
      mix(&frames[i].offset, sizeof frames[i].offset);
    }
    return made;
  }

  void write(char* to, std::size_t room) const {
    for (std::size_t i = 0, used = 0; i < count && used < room; ++i)
      used += static_cast<std::size_t>(std::snprintf(to + used, room - used, "%s%s+%#lx",
                                                     i == 0 ? "" : " ", frames[i].file,
                                                     frames[i].offset));
  }
};

dl_find_object object_of(std::uintptr_t address) {
  dl_find_object found{};
  if (::_dl_find_object(reinterpret_cast<void*>(address), &found) != 0)
    found.dlfo_map_start = nullptr;
  return found;
}

void add(trace& made, std::uintptr_t at) {
  static const void* const own =
      object_of(reinterpret_cast<std::uintptr_t>(&is_to_fail)).dlfo_map_start;
  const auto where = object_of(at);
  if (where.dlfo_map_start == nullptr || where.dlfo_map_start == own) return;
  const char* const path = where.dlfo_link_map->l_name;
  const char* const slash = std::strrchr(path, '/');
  made.frames[made.count++] = {.file = slash != nullptr ? slash + 1 : "program",
                               .offset = at - where.dlfo_link_map->l_addr};
}

_Unwind_Reason_Code add_frame(_Unwind_Context* context, void* to) {
  auto& made = *static_cast<trace*>(to);
  add(made, _Unwind_GetIP(context));
  return made.count < depth ? _URC_NO_REASON : _URC_END_OF_STACK;
}

/// The row of a place; nothing where the record is full. The lock is held.
call_place* row_of(const trace& from, std::uint64_t place, std::uint32_t call) {
  for (std::uint32_t i = 0; i < record->places_used; ++i) {
    auto& each = record->places[i];
    if (each.place == place && each.call == call) return &each;
  }
  if (record->places_used == std::size(record->places)) return nullptr;
  auto& added = record->places[record->places_used++];
  added.place = place;
  added.call = call;
  from.write(added.frames, sizeof added.frames);
  return &added;
}

bool count(const trace& from, std::uint32_t call) {
  const auto place = from.hash();
  while (record->lock.exchange(1, std::memory_order_acquire) != 0) ::sched_yield();
  auto* const row = row_of(from, place, call);
  std::uint32_t number = 0;
  if (row != nullptr) ++row->count;
  for (std::uint32_t i = 0; i < record->places_used && wanted.place == 0; ++i)
    if (record->places[i].call == call) number += record->places[i].count;
  if (row != nullptr && wanted.place != 0) number = row->count;
  const bool is_it = row != nullptr && wanted.call != nullptr && number == wanted.number &&
                     std::strcmp(wanted.call, fallible_calls[call].name) == 0 &&
                     (wanted.place == 0 || wanted.place == place) &&
                     record->has_failed.exchange(1) == 0;
  if (is_it) record->failed = *row;
  record->lock.store(0, std::memory_order_release);
  return is_it;
}

}  // namespace

bool is_to_fail(const char* call, const void* caller) {
  if (now == state::untouched) start();
  if (now != state::on || is_counting) return false;
  std::uint32_t number = 0;
  while (number < call_count && std::strcmp(call, fallible_calls[number].name) != 0) ++number;
  if (number == call_count) return false;
  is_counting = true;
  trace from;
  if (caller != nullptr)
    add(from, reinterpret_cast<std::uintptr_t>(caller));
  else
    _Unwind_Backtrace(add_frame, &from);
  // An allocator without pages is an allocation that fails, of any kind and anywhere.
  const bool is_of_allocator = std::strstr(from.frames[0].file, "jemalloc") != nullptr;
  const bool fails = !is_of_allocator && count(from, number);
  is_counting = false;
  return fails;
}

int reason_of_failure() {
  return wanted.reason;
}

}  // namespace troupe::tests
