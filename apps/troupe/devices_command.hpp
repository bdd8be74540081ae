#pragma once

#include <filesystem>
#include <string>

namespace troupe::apps {

/// What `troupe devices` looks at, besides what it finds by itself.
struct devices_request {
  std::filesystem::path nccl;        ///< NCCL, or its folder; empty: where it usually is.
  std::filesystem::path torch_cuda;  ///< libtorch_cuda.so; empty: beside LibTorch's CPU library.
  bool as_json = false;
};

/// What there is to compute on, and why what cannot be used cannot: a line each, or one JSON
/// object. Loads CUDA's and NCCL's libraries into this process where there is a card.
[[nodiscard]] std::string run_devices_command(const devices_request& request);

}  // namespace troupe::apps
