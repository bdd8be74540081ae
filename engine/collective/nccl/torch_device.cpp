#include "engine/collective/nccl/torch_device.hpp"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>

#include "engine/base/torch_error.hpp"
#include "engine/collective/port.hpp"
#include "messages/base/format.hpp"

namespace troupe::engine::nccl {
namespace {

/// Does what may throw, as LibTorch does where a device fails.
template <class Body>
auto caught(const Body& body) -> result<decltype(body())> {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return {};
    } else {
      return body();
    }
  } catch (const std::exception& wrong) {
    return fail(errc::handler_failed, "the device fails: " + reason_of(wrong));
  }
}

struct torch_mark final : mark {
  explicit torch_mark(const c10::Stream& on) : event(on.device_type()) { event.record(on); }
  result<bool> reached() override {
    return caught([this] { return event.query(); });
  }
  c10::Event event;
};

result<std::unique_ptr<mark>> mark_of(const c10::Stream& stream) {
  return caught([&]() -> std::unique_ptr<mark> { return std::make_unique<torch_mark>(stream); });
}

std::optional<data_type> type_of(at::ScalarType type) {
  switch (type) {
    case at::kChar:
      return data_type::int8;
    case at::kByte:
      return data_type::uint8;
    case at::kInt:
      return data_type::int32;
    case at::kLong:
      return data_type::int64;
    case at::kHalf:
      return data_type::float16;
    case at::kFloat:
      return data_type::float32;
    case at::kDouble:
      return data_type::float64;
    case at::kBFloat16:
      return data_type::bfloat16;
    default:
      return std::nullopt;
  }
}

}  // namespace

torch_device::torch_device(c10::Device on)
    : guard_(on.type()), on_(on), stream_(guard_.getStreamFromGlobalPool(on, true)) {}

result<std::shared_ptr<torch_device>> torch_device::make(c10::Device on) {
  try {
    return std::shared_ptr<torch_device>(new torch_device(on));
  } catch (const std::exception& wrong) {
    return fail(errc::transport_missing,
                on.str() + " cannot be used: " + reason_of(wrong) + "; see `troupe devices`");
  }
}

result<void> torch_device::enter() {
  return caught([this] { guard_.setDevice(on_); });
}

result<std::unique_ptr<mark>> torch_device::mark_own() {
  return mark_of(stream_);
}

result<std::unique_ptr<mark>> torch_device::mark_callers() {
  const auto current = caught([this] { return guard_.getStream(on_); });
  if (!current) return tl::unexpected(current.error());
  return mark_of(*current);
}

result<void> torch_device::wait_for(mark& earlier) {
  return caught([&] { static_cast<torch_mark&>(earlier).event.block(stream_); });
}

result<void> torch_device::run(const std::function<void()>& kernels) {
  return caught([&] {
    const c10::StreamGuard here(stream_);
    kernels();
  });
}

result<operation> operation_on(action what, const at::Tensor& from, const at::Tensor& to, int ranks,
                               int peer) {
  const bool counts_from = what == action::send || what == action::all_gather;
  const at::Tensor& counted = counts_from ? from : to;
  if (!counted.defined())
    return fail(errc::bad_config, "NCCL: an operation without the tensor that it is of");
  const auto type = type_of(counted.scalar_type());
  if (!type)
    return fail(errc::bad_config,
                format("NCCL: it has no elements of type %s", at::toString(counted.scalar_type())));
  for (const at::Tensor* each : {&from, &to}) {
    if (!each->defined()) continue;
    if (!each->is_contiguous(each->suggest_memory_format()))
      return fail(errc::bad_config, "NCCL: a tensor has gaps; make it contiguous first");
    if (each->scalar_type() != counted.scalar_type())
      return fail(errc::bad_config, "NCCL: the two tensors of an operation differ in dtype");
  }
  if (from.defined() && to.defined() && from.suggest_memory_format() != to.suggest_memory_format())
    return fail(errc::bad_config, "NCCL: the two tensors of an operation differ in layout");
  if (const auto fault = size_fault(what, from, to, static_cast<std::uint32_t>(ranks));
      !fault.empty())
    return fail(errc::bad_config, "NCCL: " + fault);
  operation made{.what = what,
                 .count = static_cast<std::size_t>(counted.numel()),
                 .type = *type,
                 .peer = peer};
  if (from.defined()) made.from = from.const_data_ptr();
  if (to.defined()) made.to = to.mutable_data_ptr();
  made.keep = {std::make_shared<const at::Tensor>(from), std::make_shared<const at::Tensor>(to)};
  return made;
}

}  // namespace troupe::engine::nccl
