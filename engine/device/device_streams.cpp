#include "engine/device/device_streams.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <utility>

namespace troupe::engine {
namespace {

c10::Stream pool_stream(c10::Device on) {
  return c10::impl::VirtualGuardImpl(on.type()).getStreamFromGlobalPool(on);
}

ready_event record_on(const c10::Stream& stream) {
  auto made = std::make_shared<c10::Event>(stream.device_type());
  made->record(stream);
  return made;
}

/// Of a stream of another device too.
void block(const c10::Stream& stream, const ready_event& earlier) {
  if (earlier) earlier->block(stream);
}

/// Pinned memory of the CPU with the tensor's strides, or those of a dense copy of it.
at::Tensor staging_for(const at::Tensor& tensor) {
  const auto dense = tensor.is_non_overlapping_and_dense();
  const auto options = tensor.options().device(at::kCPU).requires_grad(false).pinned_memory(true);
  return dense ? at::empty_strided(tensor.sizes(), tensor.strides(), options)
               : at::empty(tensor.sizes(), options);
}

/// Null where it counts nothing, as on the CPU.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  return dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
}

}  // namespace

device_streams::device_streams(c10::Device on) : on_(on) {
  if (on.is_cpu()) return;
  compute_ = pool_stream(on);
  copy_ = pool_stream(on);
  send_ = pool_stream(on);
}

ready_event device_streams::mark_of(const std::optional<c10::Stream>& stream) {
  return stream ? record_on(*stream) : nullptr;
}

void device_streams::wait_on(const std::optional<c10::Stream>& stream, const ready_event& earlier) {
  if (stream) block(*stream, earlier);
}

at::Tensor device_streams::copy_here(const at::Tensor& tensor) const {
  const scope copies(copy_);
  return tensor.is_cpu() ? from_host(tensor, on_) : tensor.to(on_, /*non_blocking=*/true);
}

uploaded_tensor device_streams::upload(const at::Tensor& tensor) const {
  const at::NoGradGuard unrecorded;
  auto copy = copy_here(tensor);
  return {std::move(copy), mark_copies()};
}

at::Tensor device_streams::take_on(const std::optional<c10::Stream>& stream,
                                   const at::Tensor& tensor, const ready_event& made) const {
  if (!tensor.defined()) return tensor;
  if (!stream) return to_host(tensor, made);
  const at::NoGradGuard unrecorded;
  if (tensor.device() == on_) {
    block(*stream, made);
    tensor.record_stream(*stream);
    return tensor;
  }
  // The copy's own end is what arithmetic waits for, not what the copies' stream does meanwhile.
  std::optional<c10::StreamGuard> source;
  if (!tensor.is_cpu()) {
    source.emplace(pool_stream(tensor.device()));
    block(source->current_stream(), made);
    tensor.record_stream(source->current_stream());
  }
  const auto moved = copy_here(tensor);
  if (stream->id() != copy_->id()) {
    block(*stream, record_on(*copy_));
    moved.record_stream(*stream);
  }
  return moved;
}

std::optional<std::uint64_t> free_bytes_on(c10::Device device) {
  auto* const allocator = allocator_of(device);
  if (allocator == nullptr) return std::nullopt;
  const c10::DeviceGuard on(device);
  return allocator->getMemoryInfo(device.index()).first;
}

std::optional<std::uint64_t> peak_bytes_on(c10::Device device) {
  auto* const allocator = allocator_of(device);
  if (allocator == nullptr) return std::nullopt;
  constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto statistics = allocator->getDeviceStats(device.index());
  return static_cast<std::uint64_t>(statistics.allocated_bytes[all].peak);
}

std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& tensors, const ready_event& made) {
  const at::NoGradGuard unrecorded;
  std::vector<at::Tensor> all;
  std::map<c10::Device, c10::Stream, bool (*)(c10::Device, c10::Device)> streams(
      [](c10::Device a, c10::Device b) { return a.index() < b.index(); });
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu()) {
      all.push_back(tensor);
      continue;
    }
    const auto on = tensor.device();
    auto found = streams.find(on);
    if (found == streams.end()) {
      const c10::impl::VirtualGuardImpl guard(on.type());
      found = streams.emplace(on, made ? pool_stream(on) : guard.getStream(on)).first;
      block(found->second, made);
    }
    const c10::StreamGuard copying(found->second);
    if (made) tensor.record_stream(found->second);
    all.push_back(staging_for(tensor).copy_(tensor.detach(), /*non_blocking=*/true));
  }
  for (const auto& [on, stream] : streams) record_on(stream)->synchronize();
  return all;
}

at::Tensor from_host(const at::Tensor& tensor, c10::Device on) {
  if (on.is_cpu()) return tensor;
  const auto from = tensor.is_pinned() ? tensor : tensor.pin_memory();
  return from.to(on, /*non_blocking=*/true);
}

at::Tensor to_host(const at::Tensor& tensor, const ready_event& made) {
  return to_host(std::vector{tensor}, made).front();
}

std::vector<std::vector<double>> numbers_on_host(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard unrecorded;
  std::vector<at::Tensor> rows;
  for (const auto& each : tensors)
    if (each.defined() && !each.is_cpu()) rows.push_back(each.reshape({-1}));
  // f32 beside f64 becomes that.
  const auto from_device = rows.empty() ? at::Tensor() : to_host(at::cat(rows)).to(at::kDouble);
  std::vector<std::vector<double>> all;
  std::int64_t next = 0;
  for (const auto& each : tensors) {
    auto& numbers = all.emplace_back();
    if (!each.defined()) continue;
    const auto count = each.numel();
    const auto own = each.is_cpu() ? each.to(at::kDouble).resolve_neg().contiguous()
                                   : from_device.narrow(0, next, count);  // [count] f64
    if (!each.is_cpu()) next += count;
    numbers.assign(own.const_data_ptr<double>(), own.const_data_ptr<double>() + count);
  }
  return all;
}

}  // namespace troupe::engine
