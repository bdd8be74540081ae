#include "tests/fake_device/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <system_error>

namespace troupe::tests::fake_device {
namespace {

constexpr std::size_t whole = std::size_t{16} << 30;  // address space; pages come with their use
constexpr std::size_t guard = 64;
constexpr int guard_byte = 0xa5;
constexpr int poison = 0xff;

void* map(std::size_t bytes, int protection, int file) {
  void* const at = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (at == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  return at;
}

}  // namespace

memory::memory() {
  const int file = memfd_create("fake device", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(whole)) != 0)
    throw std::system_error(errno, std::generic_category(), "memfd_create");
  hidden_ = static_cast<std::byte*>(map(whole, PROT_NONE, file));
  open_ = static_cast<std::byte*>(map(whole, PROT_READ | PROT_WRITE, file));
  close(file);
}

memory::~memory() {
  munmap(hidden_, whole);
  munmap(open_, whole);
}

void* memory::allocate(std::size_t bytes) {
  const std::size_t room = std::bit_ceil(std::max<std::size_t>(bytes, 64)) + guard;
  const std::scoped_lock lock(mutex_);
  std::byte* at = nullptr;
  if (auto& spare = spare_[room]; !spare.empty()) {
    at = spare.back();
    spare.pop_back();
  } else {
    if (room > whole - used_) return nullptr;
    at = hidden_ + used_;
    used_ += room;
  }
  taken_[at] = {bytes, room};
  std::memset(seen_by_device(at), poison, bytes);
  std::memset(static_cast<std::byte*>(seen_by_device(at)) + bytes, guard_byte, guard);
  return at;
}

bool memory::free(void* address) {
  auto* const at = static_cast<std::byte*>(address);
  const std::scoped_lock lock(mutex_);
  const auto found = taken_.find(at);
  if (found == taken_.end()) return false;
  const auto [bytes, room] = found->second;
  taken_.erase(found);
  auto* const seen = static_cast<std::byte*>(seen_by_device(at));
  const bool intact = std::all_of(seen + bytes, seen + bytes + guard, [](std::byte each) {
    return each == static_cast<std::byte>(guard_byte);
  });
  std::memset(seen, poison, bytes);  // for who uses it yet
  spare_[room].push_back(at);
  return intact;
}

void* memory::seen_by_device(void* address) const {
  if (address == nullptr) return nullptr;
  return open_ + (static_cast<std::byte*>(address) - hidden_);
}

bool memory::contains(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  return at >= hidden_ && at < hidden_ + whole;
}

const void* memory::piece_of(const void* address) {
  auto* const at = static_cast<std::byte*>(const_cast<void*>(address));
  const std::scoped_lock lock(mutex_);
  const auto behind = taken_.upper_bound(at);
  if (behind == taken_.begin()) return nullptr;
  const auto& [begin, of] = *std::prev(behind);
  return at < begin + of.room ? begin : nullptr;
}

}  // namespace troupe::tests::fake_device
