#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/fake_device/fake_device.hpp"
#include "tests/fake_device/memory.hpp"
#include "tests/fake_device/order.hpp"

namespace troupe::tests::fake_device {

/// Bytes on their way to the host.
struct delivery {
  stamp by;
  c10::Storage to;  // keeps the memory
  std::byte* at = nullptr;
  std::vector<std::byte> bytes = {};
};

/// All that the backend knows, of all devices. `mutex` guards it; memory of the host is freed under
/// it, so that has a mutex of its own.
struct world {
  std::mutex mutex;
  order tasks;
  report found;
  std::vector<delivery> deliveries;
  std::atomic<std::size_t> deliveries_due = 0;
  std::atomic<std::chrono::milliseconds> wait_time{};  // of the host for an event
  std::array<int, device_count> next_stream{};
  std::array<std::uint64_t, device_count> used{}, peak{};
  std::array<std::uint64_t, device_count> limit{};  // 0: any
  std::mutex pinned_mutex;
  std::set<const void*> pinned;

  /// The host has waited: what is over by now arrives.
  void deliver();
  /// What a task of the stream may know to have arrived, arrives; a race otherwise.
  void deliver_to(int stream, const void* storage);
};

[[nodiscard]] world& the_world();
[[nodiscard]] memory& the_memory();

/// The thread's current device, and its stream there as one of all devices' streams.
[[nodiscard]] int current_device();
[[nodiscard]] int current_stream(int device);
[[nodiscard]] int index_of(const c10::Stream& stream);

/// How often the calling thread has taken memory of a device.
[[nodiscard]] std::uint64_t allocations_of_thread();

/// Registers guards, memory and hooks; `install` does the rest.
void install_backend();

}  // namespace troupe::tests::fake_device
