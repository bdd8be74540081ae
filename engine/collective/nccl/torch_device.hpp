#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "engine/collective/nccl/device.hpp"
#include "engine/collective/nccl/operation.hpp"

namespace troupe::engine::nccl {

/// The device of a communicator by LibTorch's generic streams and events, so CUDA's where
/// LibTorch's CUDA library is loaded. Has a stream of high priority of its own.
class torch_device final : public device {
 public:
  /// Errors: transport_missing where LibTorch has no such device, with its words.
  [[nodiscard]] static result<std::shared_ptr<torch_device>> make(c10::Device on);

  result<void> enter() override;
  stream_handle stream() override { return stream_.native_handle(); }
  result<std::unique_ptr<mark>> mark_own() override;
  result<std::unique_ptr<mark>> mark_callers() override;
  result<void> wait_for(mark& earlier) override;
  result<void> run(const std::function<void()>& kernels) override;

 private:
  explicit torch_device(c10::Device on);

  const c10::impl::VirtualGuardImpl guard_;
  const c10::Device on_;
  const c10::Stream stream_;
};

/// An operation on tensors, which it keeps: `from` is what is given, `to` what is written; either
/// may be undefined where `what` has no use for it. Counts follow from the sizes; shapes do not
/// matter. Errors: bad_config for a dtype that NCCL does not know, a tensor with gaps, sizes that
/// do not fit.
[[nodiscard]] result<operation> operation_on(action what, const at::Tensor& from,
                                             const at::Tensor& to, int ranks, int peer = 0);

}  // namespace troupe::engine::nccl
