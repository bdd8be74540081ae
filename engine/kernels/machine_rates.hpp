#pragma once

#include <cstdint>

namespace troupe::engine::kernels {

/// Kinds of arithmetic that have a rate of their own.
enum class arithmetic : std::uint8_t {
  f32,
  bf16,  ///< Products of matrices or pairs in bf16 where the CPU has them, else in f32.
};

/// What a thread of a machine reaches at most.
struct machine_rates {
  double flops_per_s = 0;         ///< A multiply-accumulate is two. 0: not measured.
  double memory_bytes_per_s = 0;  ///< Read and written. 0: not measured.

  bool operator==(const machine_rates&) const = default;
};

/// Floating-point operations a second of the calling thread: what a tile of the kernels for this
/// CPU, or in bf16 AMX, computes from operands in the first-level cache.
[[nodiscard]] double measure_flops_per_s(arithmetic kind);

/// Measures so many threads at once (one or more), and gives the mean of one: its arithmetic, and
/// adding two arrays into a third in memory. Takes some tenths of a second, and meanwhile 192 MiB,
/// or 24 MiB a thread where that is more. Throws std::system_error where the system gives no
/// thread, and std::bad_alloc.
[[nodiscard]] machine_rates measure_rates(arithmetic kind, std::uint32_t threads);

}  // namespace troupe::engine::kernels
