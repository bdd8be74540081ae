#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace troupe::tests::fake_device {

/// The memory of the devices, mapped twice: at addresses that nobody may read or write, which are
/// those that tensors have, and where the devices' operators use it. So code of the host that
/// follows a device's pointer ends with SIGSEGV at once, and nothing else. Thread-safe.
class memory {
 public:
  /// Throws std::system_error where the system gives no address space.
  memory();
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;
  ~memory();

  /// At least 1 byte, aligned to 64; null: there is no room. Filled with bytes that are NaN as
  /// floats. Guarded by bytes behind it that nobody should write.
  [[nodiscard]] void* allocate(std::size_t bytes);

  /// Writes NaN over it. False: somebody has written behind it.
  [[nodiscard]] bool free(void* address);

  /// Where operators find what a tensor has at `address`, which may be anywhere in a piece.
  [[nodiscard]] void* seen_by_device(void* address) const;

  [[nodiscard]] bool contains(const void* address) const;

  /// Where the piece begins that `address` lies in; null: in none that is taken.
  [[nodiscard]] const void* piece_of(const void* address);

 private:
  struct extent {
    std::size_t bytes;  // that were asked for
    std::size_t room;
  };

  std::byte* hidden_ = nullptr;  // PROT_NONE
  std::byte* open_ = nullptr;
  std::mutex mutex_;
  std::size_t used_ = 0;                                  // from the beginning on
  std::map<std::size_t, std::vector<std::byte*>> spare_;  // by room
  std::map<std::byte*, extent> taken_;
};

}  // namespace troupe::tests::fake_device
