#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <unordered_map>
#include <utility>

namespace troupe::engine {

/// The storages of some tensors, without keeping them alive. A value; not thread-safe.
class watched_storages {
 public:
  /// Counts the tensor's storage, once; an undefined tensor has none.
  void add(const at::Tensor& tensor) { note(tensor, true); }

  /// Never counts the tensor's storage, whatever view of it is added: it belongs to somebody else.
  void leave_out(const at::Tensor& tensor) { note(tensor, false); }

  /// What one of the two leaves out is left out.
  void merge(const watched_storages& other);

  /// Bytes of those that count and live.
  [[nodiscard]] std::uint64_t live_bytes() const;

 private:
  struct entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    bool counts = true;
  };

  void note(const at::Tensor& tensor, bool counts);

  // A storage's object stays as long as somebody watches it, so no other can take its address.
  std::unordered_map<const c10::StorageImpl*, entry> storages_;
};

/// While one lives, every operator that runs on this thread has the storages of its outputs noted.
/// One at a time on a thread.
class storage_watch {
 public:
  storage_watch();
  storage_watch(const storage_watch&) = delete;
  storage_watch& operator=(const storage_watch&) = delete;
  ~storage_watch();

  [[nodiscard]] watched_storages take() { return std::move(seen_); }

  /// For the observer of operators: what the watch of this thread has seen; null if there is none.
  [[nodiscard]] static watched_storages* current();

 private:
  watched_storages seen_;
  std::uint64_t observer_;  // an at::CallbackHandle
};

}  // namespace troupe::engine
