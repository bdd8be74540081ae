#include "actors/remote/lendable.hpp"

#include <c10/core/CPUAllocator.h>

#include <memory>
#include <mutex>
#include <utility>

namespace troupe::actors {
namespace {

using messages::payload;
using messages::shared_memory;

thread_local shared_memory* lending = nullptr;  // of the thread's innermost scope

/// ATen's, for all threads: LibTorch asks one allocator for every CPU tensor.
class cpu_allocator final : public c10::Allocator {
 public:
  explicit cpu_allocator(c10::Allocator& usual) : usual_(usual) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (lending == nullptr || bytes < least_lendable) return usual_.allocate(bytes);
    auto block = std::make_unique<payload>(lending->allocate(bytes));
    if (block->data == nullptr) return usual_.allocate(bytes);
    void* const data = block->data;
    return {data, block.release(), [](void* held) { delete static_cast<payload*>(held); },
            c10::Device(c10::kCPU)};
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  c10::Allocator& usual_;
};

void install_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {  // for ever: tensors may be made until the process has ended
    c10::SetCPUAllocator(new cpu_allocator(*c10::GetCPUAllocator()));
  });
}

}  // namespace

lendable_tensors::lendable_tensors(std::shared_ptr<shared_memory> memory)
    : memory_(std::move(memory)), outer_(std::exchange(lending, memory_.get())) {
  if (memory_) install_allocator();
}

lendable_tensors::~lendable_tensors() {
  lending = outer_;
}

}  // namespace troupe::actors
