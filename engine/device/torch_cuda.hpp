#pragma once

#include <filesystem>

#include "engine/device/device_findings_core.hpp"

namespace troupe::engine {

/// The CUDA that the LibTorch of this folder (torch, of a wheel) was built with, by its version
/// file: 13000 is 13.0; 0: without, or the file does not tell.
[[nodiscard]] int cuda_of_torch(const std::filesystem::path& torch_folder);

/// Loads LibTorch's CUDA library and asks what it was built for. Before anything in this process
/// asks LibTorch about CUDA: LibTorch keeps the first answer. Takes about a second and 230 MiB.
/// `library`: libtorch_cuda.so, beside the libtorch_cpu.so that is loaded.
[[nodiscard]] torch_cuda_facts load_torch_cuda(const std::filesystem::path& library);

}  // namespace troupe::engine
