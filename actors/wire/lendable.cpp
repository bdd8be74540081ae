#include "actors/wire/lendable.hpp"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace troupe::actors {
namespace {

using messages::payload;
using messages::shared_memory;

thread_local shared_memory* lending = nullptr;  // of the thread's innermost scope

/// ATen's, for all threads: LibTorch asks one allocator for every CPU tensor, and frees some of
/// them by their address alone.
class cpu_allocator final : public c10::Allocator {
 public:
  /// Lives for ever: tensors may be freed until the process has ended.
  static cpu_allocator& instance() {
    static auto* const one = [] {
      auto* const made = new cpu_allocator(*c10::GetCPUAllocator());
      c10::SetCPUAllocator(made);
      return made;
    }();
    return *one;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (lending == nullptr || bytes < least_lendable) return usual_.allocate(bytes);
    auto block = lending->allocate(bytes);
    void* const data = block.data;
    if (data == nullptr) return usual_.allocate(bytes);
    keep(std::move(block));
    return {data, data, &cpu_allocator::release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &cpu_allocator::release; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  explicit cpu_allocator(c10::Allocator& usual) : usual_(usual) {}

  void keep(payload block) {
    const auto at = reinterpret_cast<std::uintptr_t>(block.data);
    const std::lock_guard lock(mutex_);
    if (at < lowest_) lowest_ = at;
    if (at > highest_) highest_ = at;
    blocks_.emplace(block.data, std::move(block));
  }

  static void release(void* data) {
    auto& self = instance();
    if (self.take(data).data == nullptr) self.usual_.raw_deleter()(data);
  }

  /// The block at this address, if it is one of ours.
  payload take(void* data) {
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    if (at < lowest_ || at > highest_) return {};  // without the lock: nearly all tensors
    const std::lock_guard lock(mutex_);
    auto block = blocks_.extract(data);
    return block ? std::move(block.mapped()) : payload();
  }

  c10::Allocator& usual_;
  std::atomic<std::uintptr_t> lowest_ = UINTPTR_MAX;  // of all blocks there have been
  std::atomic<std::uintptr_t> highest_ = 0;
  std::mutex mutex_;
  std::unordered_map<const void*, payload> blocks_;
};

}  // namespace

lendable_tensors::lendable_tensors(std::shared_ptr<shared_memory> memory)
    : memory_(std::move(memory)), outer_(std::exchange(lending, memory_.get())) {
  if (memory_) (void)cpu_allocator::instance();
}

lendable_tensors::~lendable_tensors() {
  lending = outer_;
}

}  // namespace troupe::actors
