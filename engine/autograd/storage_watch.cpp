#include "engine/autograd/storage_watch.hpp"

#include <ATen/record_function.h>

#include <cassert>
#include <memory>
#include <type_traits>

namespace troupe::engine {
namespace {

static_assert(std::is_same_v<at::CallbackHandle, std::uint64_t>);

thread_local watched_storages* current_watch = nullptr;

void note_outputs(const at::RecordFunction& operation, at::ObserverContext* /*context*/) {
  auto* const seen = storage_watch::current();
  if (!seen) return;
  for (const auto& output : operation.outputs()) {
    if (output.isTensor()) seen->add(output.toTensor());
    if (output.isTensorList())
      for (const at::Tensor& each : output.toTensorList()) seen->add(each);
  }
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& /*operation*/) {
  return nullptr;
}

}  // namespace

void watched_storages::note(const at::Tensor& tensor, bool counts) {
  if (!tensor.defined()) return;
  if (tensor.is_sparse()) {  // an embedding's gradient: two tensors in one
    note(tensor._indices(), counts);
    return note(tensor._values(), counts);
  }
  if (!tensor.has_storage()) return;
  const auto& storage = tensor.storage();
  const auto [found, is_new] = storages_.try_emplace(storage.unsafeGetStorageImpl(),
                                                     entry{storage.getWeakStorageImpl(), counts});
  found->second.counts = found->second.counts && counts;
}

void watched_storages::merge(const watched_storages& other) {
  for (const auto& [address, theirs] : other.storages_) {
    const auto [found, is_new] = storages_.try_emplace(address, theirs);
    found->second.counts = found->second.counts && theirs.counts;
  }
}

std::uint64_t watched_storages::live_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [address, each] : storages_) {
    if (!each.counts) continue;
    if (const auto storage = each.storage.lock()) total += storage->nbytes();
  }
  return total;
}

storage_watch::storage_watch()
    : observer_(at::addThreadLocalCallback(at::RecordFunctionCallback(begin, note_outputs)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {
  assert(current_watch == nullptr && "one watch at a time on a thread");
  current_watch = &seen_;
}

storage_watch::~storage_watch() {
  current_watch = nullptr;
  at::removeCallback(observer_);
}

watched_storages* storage_watch::current() {
  return current_watch;
}

}  // namespace troupe::engine
