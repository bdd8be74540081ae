#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::engine {

/// A GPU, as the driver tells of it.
struct card {
  int index = 0;  ///< As in "cuda:0": of those that this process may see.
  std::string name;
  std::uint64_t memory_bytes = 0;
  int major = 0;  ///< Architecture (compute capability) 9.0: 9 and 0.
  int minor = 0;

  bool operator==(const card&) const = default;
};

/// What NVIDIA's driver says of itself and of the GPUs of this machine.
struct driver_facts {
  std::string problem;  ///< Why it cannot be asked, and what to do; empty: it could.
  std::string version;  ///< "580.65.06"; empty: NVML is not there to tell.
  int cuda = 0;         ///< The newest CUDA that it runs: 13000 is 13.0.
  std::vector<card> cards;
  /// GPUs of the machine, those that CUDA_VISIBLE_DEVICES hides included; -1: NVML does not tell.
  int machine_cards = -1;
};

/// Asks the driver's libraries, which it loads by these names: nothing of CUDA is needed otherwise.
/// From any thread; takes up to a second where there are cards.
[[nodiscard]] driver_facts ask_driver(const char* cuda_library = "libcuda.so.1",
                                      const char* nvml_library = "libnvidia-ml.so.1");

}  // namespace troupe::engine
