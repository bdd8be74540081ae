#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

/// Devices for tests, behind PyTorch's private-use backend: their operators run at once, on host
/// memory and by the CPU's kernels, so they give the CPU's bits; what is fake is that they take
/// time. Streams and events are vector clocks: tasks that nothing orders are found whatever the
/// timing was (see order.hpp). Nobody but their operators can read the devices' memory (see
/// memory.hpp). A copy to pinned memory that nobody waits for has only bytes that are NaN there
/// until an event after it was waited for.
///
/// Convolutions are those of `engine::convolve`; random numbers those of the CPU's generator.
namespace troupe::tests::fake_device {

/// Registers the backend. Once a process, before anything asks LibTorch for an accelerator; later
/// calls do nothing.
void install();

[[nodiscard]] c10::Device device(int index);

/// What has been seen since `reset`.
struct report {
  std::vector<std::string> races = {};  ///< In words, with both tasks' names.
  /// Operators that read on the host what was still on its way there.
  std::vector<std::string> host_reads = {};
  /// Waits of the host for a stream or a device, those inside of copies included.
  std::vector<std::string> synchronisations = {};
  std::uint64_t event_waits = 0;           ///< Of the host.
  std::uint64_t events = 0;                ///< Recorded.
  std::uint64_t operators = 0;             ///< On the devices, copies included.
  std::uint64_t operators_since_wait = 0;  ///< Of them: since the host's last wait for an event.
  std::uint64_t overruns = 0;              ///< Pieces of memory that were written behind their end.
  /// Pieces of memory taken by kernels that run between a library's operations on its stream.
  std::uint64_t late_allocations = 0;
};

[[nodiscard]] report seen();
void reset();

/// Bytes that tensors on the device hold, and the most that they may: what is beyond that throws
/// c10::OutOfMemoryError, as a GPU does. At first any.
[[nodiscard]] std::uint64_t bytes_in_use(int device);
/// The most that they have held at once since the last call, or since the beginning.
[[nodiscard]] std::uint64_t take_peak_bytes(int device);
void limit_memory(int device, std::uint64_t bytes);

/// How long the host waits for an event from now on; at first not at all.
void slow_events(std::chrono::milliseconds by);

/// A copy on the CPU for tests, which waits for the whole device and is not counted.
[[nodiscard]] at::Tensor peek(const at::Tensor& tensor);

}  // namespace troupe::tests::fake_device
