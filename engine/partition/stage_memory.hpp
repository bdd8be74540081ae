#pragma once

namespace troupe::engine {

/// The memory that a stage needs, in bytes, by what it computes on.
struct stage_memory {
  double on_cpu = 0;         ///< Of its process, if it computes on the CPU.
  double on_device = 0;      ///< Of its device's memory, if it computes on a GPU ..
  double beside_device = 0;  ///< .. and of its process then.

  /// Of its process.
  [[nodiscard]] double on_host(bool has_device) const {
    return has_device ? beside_device : on_cpu;
  }

  bool operator==(const stage_memory&) const = default;
};

}  // namespace troupe::engine
