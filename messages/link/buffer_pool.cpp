#include "messages/link/buffer_pool.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

namespace troupe::messages {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20;

std::byte* allocate(std::size_t bytes) {
  void* memory = nullptr;
  const bool large = bytes >= huge_page;
  if (posix_memalign(&memory, large ? huge_page : alignment, bytes) != 0) throw std::bad_alloc();
  // A hint: huge pages make the first touch of a large buffer several times cheaper.
  if (large) madvise(memory, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

}  // namespace

class buffer_pool::store {
 public:
  explicit store(std::size_t cap) : cap_(cap) {}
  store(const store&) = delete;
  store& operator=(const store&) = delete;
  ~store() { retire(); }

  std::byte* take(std::size_t size) {
    {
      const std::lock_guard lock(mutex_);
      std::vector<std::byte*>& unused = unused_[size];
      if (!unused.empty()) {
        std::byte* const buffer = unused.back();
        unused.pop_back();
        retained_ -= size;
        return buffer;
      }
    }
    return allocate(size);
  }

  void give_back(std::byte* buffer, std::size_t size) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (retained_ + size <= cap_) {
        unused_[size].push_back(buffer);
        retained_ += size;
        return;
      }
    }
    std::free(buffer);
  }

  void retire() noexcept {
    const std::lock_guard lock(mutex_);
    for (auto& [size, buffers] : unused_)
      for (std::byte* buffer : buffers) std::free(buffer);
    unused_.clear();
    retained_ = cap_ = 0;
  }

  std::size_t retained() const {
    const std::lock_guard lock(mutex_);
    return retained_;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::size_t, std::vector<std::byte*>> unused_;  // by size class
  std::size_t retained_ = 0;
  std::size_t cap_;
};

buffer_pool::buffer_pool(std::size_t retained_bytes)
    : store_(std::make_shared<store>(retained_bytes)) {}

buffer_pool::~buffer_pool() {
  store_->retire();
}

payload buffer_pool::acquire(std::size_t bytes) {
  if (bytes == 0) return {};
  const std::size_t size = class_bytes(bytes);
  std::byte* const buffer = store_->take(size);
  return {buffer, bytes, std::shared_ptr<void>(buffer, [store = store_, size](void* released) {
            store->give_back(static_cast<std::byte*>(released), size);
          })};
}

std::size_t buffer_pool::retained_bytes() const {
  return store_->retained();
}

std::size_t buffer_pool::class_bytes(std::size_t bytes) noexcept {
  // Four classes to each power of two.
  const std::size_t step = std::max(alignment, std::bit_floor(bytes) / 4);
  return (bytes + step - 1) / step * step;
}

}  // namespace troupe::messages
