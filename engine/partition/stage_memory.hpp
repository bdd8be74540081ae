#pragma once

#include <cmath>
#include <string>

namespace troupe::engine {

/// The memory that a stage needs, in bytes, by what it computes on.
struct stage_memory {
  double on_cpu = 0;         ///< Of its process, if it computes on the CPU.
  double on_device = 0;      ///< Of its device's memory, if it computes on a GPU ..
  double beside_device = 0;  ///< .. and of its process then.
  /// What NCCL takes of that GPU besides, which LibTorch's allocator does not count: an estimate
  /// (see nccl::sum_buffer_bytes).
  double by_nccl = 0;

  /// Of its process.
  [[nodiscard]] double on_host(bool has_device) const {
    return has_device ? beside_device : on_cpu;
  }
  /// Of its device's memory, by whomever.
  [[nodiscard]] double of_device() const { return on_device + by_nccl; }

  bool operator==(const stage_memory&) const = default;
};

/// What is said behind an amount of a GPU's memory: " (of which 768 MiB are an estimate of NCCL's
/// buffers)"; empty: NCCL takes none.
[[nodiscard]] inline std::string words_on_nccl(double bytes) {
  if (bytes <= 0) return {};
  return " (of which " + std::to_string(std::llround(bytes / (1 << 20))) +
         " MiB are an estimate of NCCL's buffers)";
}

}  // namespace troupe::engine
