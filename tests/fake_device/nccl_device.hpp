#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>

#include "engine/collective/nccl/device.hpp"
#include "tests/fake_nccl/device.hpp"

namespace troupe::tests::fake_device {

/// A tensor's memory as another library than LibTorch sees it, which uses it until it lets go of
/// what is returned, and the host then knows that. That use comes after what the host has waited
/// for.
[[nodiscard]] std::shared_ptr<void> hold_memory(const at::Tensor& whose, bool is_written);

/// A device of tests as the NCCL of tests sees it: a stream of that library moves what operations
/// move, in its own time, and stands for one of the device's, whose clock their reads and writes
/// are. Kernels between operations run on the library's stream, when their turn comes.
[[nodiscard]] std::shared_ptr<engine::nccl::device> make_nccl_device(
    const fake_nccl::controls& library, c10::Device on);

}  // namespace troupe::tests::fake_device
