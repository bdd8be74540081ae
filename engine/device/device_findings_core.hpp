#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/device/device_choice.hpp"
#include "engine/device/driver.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// An architecture that LibTorch's kernels were built for.
struct built_architecture {
  int version = 0;        ///< 90 is 9.0.
  bool portable = false;  ///< Code for any newer GPU too, which the driver translates.
  bool exact = false;     ///< For this very architecture only ("90a").

  bool operator==(const built_architecture&) const = default;
};

/// What LibTorch's CUDA libraries say.
struct torch_cuda_facts {
  std::string problem;  ///< Why they cannot be loaded, and what to do; empty: they could, or were
                        ///< not needed.
  int cuda = 0;         ///< The CUDA that LibTorch was built with: 13000 is 13.0; 0: without.
  std::vector<built_architecture> architectures;  ///< Empty: not known.
};

/// Reads "-gencode;arch=compute_90,code=sm_90" and the like out of what LibTorch says of its build.
[[nodiscard]] std::vector<built_architecture> architectures_in(std::string_view config);

/// Why no GPU at all can be used, before LibTorch's libraries are loaded; empty: they are to be.
[[nodiscard]] std::string reason_against_all(const driver_facts& driver, int torch_cuda);

/// Why LibTorch cannot use this GPU, and what to do; empty: it can.
[[nodiscard]] std::string reason_against(const card& one, const torch_cuda_facts& torch);

/// Why stages cannot be trained on GPU `index`, by what is missing first, and what to do; empty:
/// they can. `against_all`: what `reason_against_all` says.
[[nodiscard]] std::string reason_against_device(int index, const driver_facts& driver,
                                                const std::string& against_all,
                                                const torch_cuda_facts& torch);

/// Which of the driver's GPUs LibTorch can use; `against_all`: what `reason_against_all` says.
[[nodiscard]] usable_cards usable_among(const driver_facts& driver, const std::string& against_all,
                                        const torch_cuda_facts& torch);

/// What pip calls the package that has a library which the loader misses ("libcudnn.so.9: cannot
/// open .."); empty: not known.
[[nodiscard]] std::string_view package_of_missing(std::string_view loader_text);

/// "13.0" for 13000.
[[nodiscard]] std::string cuda_text(int version);

}  // namespace troupe::engine
