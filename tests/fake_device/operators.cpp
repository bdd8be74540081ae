// The devices' operators: each is the CPU's, on tensors of the CPU that share the device's memory.

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/operators/convolution.hpp"
#include "tests/fake_device/world.hpp"

namespace troupe::tests::fake_device {
namespace {

using torch::jit::Stack;

constexpr c10::DispatchKeySet own_keys(c10::DispatchKey::PrivateUse1);

bool is_ours(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_privateuseone();
}

const void* memory_of(const at::Tensor& tensor) {
  return tensor.storage().data();
}

/// A tensor of the CPU over the device's memory, good for as long as `tensor` is.
at::Tensor as_cpu(const at::Tensor& tensor) {
  if (!is_ours(tensor)) return tensor;
  const auto options = tensor.options().device(at::kCPU).requires_grad(false);
  void* const base = the_memory().seen_by_device(tensor.storage().mutable_data());
  if (base == nullptr) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  const auto bytes = tensor.storage().nbytes();
  auto storage = c10::Storage(c10::Storage::use_byte_size_t(), bytes,
                              c10::DataPtr(base, c10::Device(c10::kCPU)), nullptr, false);
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  return made;
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device> on, std::optional<bool>) {
  const c10::DeviceGuard guard(on.value_or(device(current_device())));
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(at::kPrivateUse1),
                                           own_keys, type.value_or(at::kFloat));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device> on, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(on.value_or(device(current_device())));
  return at::detail::empty_generic(size, c10::GetAllocator(at::kPrivateUse1), own_keys,
                                   type.value_or(at::kFloat), format);
}

/// New memory where the old is too small; what was there is not kept.
const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format) impl->empty_tensor_restride(*format);
  const auto needed =
      (impl->numel() + impl->storage_offset()) * static_cast<std::int64_t>(self.element_size());
  if (static_cast<std::int64_t>(self.storage().nbytes()) < needed) {
    const c10::DeviceGuard guard(self.device());
    const auto& storage = self.storage();
    storage.set_data_ptr_noswap(
        c10::GetAllocator(at::kPrivateUse1)->allocate(static_cast<std::size_t>(needed)));
    storage.set_nbytes(static_cast<std::size_t>(needed));
  }
  return self;
}

/// A task of the current stream of a device, which uses tensors.
class task {
 public:
  task(int on, const std::string& name) : stream_(current_stream(on)) {
    const std::scoped_lock lock(the_world().mutex);
    the_world().tasks.begin(stream_, name);
    ++the_world().found.operators;
    ++the_world().found.operators_since_wait;
  }

  void reads(const at::Tensor& tensor) const {
    if (!is_ours(tensor) || !memory_of(tensor)) return;
    const std::scoped_lock lock(the_world().mutex);
    the_world().tasks.read(memory_of(tensor), stream_);
  }
  void writes(const at::Tensor& tensor) const {
    if (!is_ours(tensor) || !memory_of(tensor)) return;
    const std::scoped_lock lock(the_world().mutex);
    the_world().tasks.written(memory_of(tensor), stream_);
  }
  /// The host waits for it.
  void holds_host(const std::string& why) const {
    auto& world = the_world();
    const std::scoped_lock lock(world.mutex);
    world.found.synchronisations.push_back(why + " on " + name_of_stream(stream_));
    world.tasks.host_waits(stream_);
    world.deliver();
  }
  /// Comes after what the device's current stream has been given, which it holds up in turn.
  void meets(int other_device) const {
    const std::scoped_lock lock(the_world().mutex);
    auto& tasks = the_world().tasks;
    const int other = current_stream(other_device);
    tasks.block(stream_, tasks.record(other));
    tasks.block(other, tasks.record(stream_));
  }
  [[nodiscard]] int stream() const { return stream_; }

 private:
  int stream_;
};

bool is_pinned(const at::Tensor& tensor) {
  const std::scoped_lock lock(the_world().pinned_mutex);
  return the_world().pinned.contains(tensor.storage().data());
}

/// Pinned memory gets NaN, and the bytes when the host has waited.
void send_to_host(const task& of, const at::Tensor& from, const at::Tensor& to) {
  auto* const at = static_cast<std::byte*>(to.mutable_data_ptr());
  as_cpu(to).copy_(as_cpu(from));
  const std::scoped_lock lock(the_world().mutex);
  delivery due{.by = the_world().tasks.now(of.stream()), .to = to.storage(), .at = at};
  due.bytes.assign(at, at + to.nbytes());
  std::memset(at, 0xff, to.nbytes());
  the_world().deliveries.push_back(std::move(due));
  ++the_world().deliveries_due;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::NoGradGuard no_grad;
  const bool to_host = !is_ours(to), from_host = !is_ours(from);
  const int on = (from_host ? to : from).device().index();
  const int there = to_host ? on : to.device().index();
  const task copy(on, to_host     ? "a copy to the host"
                      : from_host ? "a copy from the host"
                                  : "a copy");
  if (there != on) copy.meets(there);  // as CUDA does
  copy.reads(from);
  copy.writes(to);
  if (from_host) {
    const std::scoped_lock lock(the_world().mutex);
    the_world().deliver_to(copy.stream(), from.storage().unsafeGetStorageImpl());
  }
  if (to_host && non_blocking && is_pinned(to) && to.is_non_overlapping_and_dense()) {
    send_to_host(copy, from, to);
    return to;
  }
  // What is not pinned is copied to the host at once; from there it is staged.
  if (to_host)
    copy.holds_host("a copy to the host");
  else if (from_host && !non_blocking)
    copy.holds_host("a copy from the host");
  as_cpu(to).copy_(as_cpu(from));
  if (there != on) copy.meets(there);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  const task read(tensor.device().index(), "item");
  read.reads(tensor);
  read.holds_host("item");
  return as_cpu(tensor).item();
}

void record_stream(at::Tensor& tensor, at::Stream stream) {
  const std::scoped_lock lock(the_world().mutex);
  the_world().tasks.recorded(memory_of(tensor), index_of(stream));
}

/// Every tensor among the arguments that lie on a stack, in their lists too.
template <class Body>
void for_each_tensor(const c10::IValue& value, const Body& body) {
  if (value.isTensor()) return body(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorList()) body(each);
  } else if (value.isOptionalTensorList()) {
    for (const auto& each : value.toOptionalTensorVector())
      if (each) body(*each);
  }
}

/// The tensors that an operator was given, and what stands for them on the CPU.
struct stand_ins {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs = {};

  at::Tensor of(const at::Tensor& given) {
    if (!is_ours(given)) return given;
    for (const auto& [ours, there] : pairs)
      if (ours.is_same(given)) return there;
    return pairs.emplace_back(given, as_cpu(given)).second;
  }

  c10::IValue of(const c10::IValue& value) {
    if (value.isTensor()) return of(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorList()) list.push_back(of(each));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& each : value.toOptionalTensorVector())
        list.push_back(each ? std::optional(of(*each)) : std::nullopt);
      return list;
    }
    if (value.isDevice() && value.toDevice().is_privateuseone()) return at::Device(at::kCPU);
    return value;
  }

  /// What an operator gave, on the device: what it was given, a view of that, or a copy.
  at::Tensor back(const at::Tensor& made, int on) const {
    if (!made.defined()) return made;
    for (const auto& [ours, there] : pairs) {
      if (made.is_same(there)) return ours;
      if (made.has_storage() && made.storage().is_alias_of(there.storage()))
        return at::native::as_strided_tensorimpl(ours, made.sizes(), made.strides(),
                                                 made.storage_offset());
    }
    const auto copied =
        empty_strided(made.sizes(), made.strides(), made.scalar_type(), {}, device(on), {});
    as_cpu(copied).copy_(made);
    return copied;
  }

  c10::IValue back(const c10::IValue& value, int on) const {
    if (value.isTensor()) return back(value.toTensor(), on);
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorList()) list.push_back(back(each, on));
    return list;
  }

  /// What an operator has resized lies elsewhere by now.
  void take_resized() const {
    for (const auto& [ours, there] : pairs) {
      if (there.sizes() == ours.sizes()) continue;
      resize(ours, there.sizes(), {});
      as_cpu(ours).copy_(there);
    }
  }
};

/// The device's last task has written it.
void note_result(const at::Tensor& made) {
  if (!is_ours(made) || !memory_of(made)) return;
  const std::scoped_lock lock(the_world().mutex);
  the_world().tasks.written(memory_of(made), current_stream(made.device().index()));
}

/// That batch norm updates its running statistics is not in its schema.
bool is_written(const c10::FunctionSchema& schema, std::size_t argument) {
  const auto* const alias = schema.arguments()[argument].alias_info();
  return (alias != nullptr && alias->isWrite()) ||
         (schema.name() == "aten::native_batch_norm" &&
          schema.arguments()[argument].name().starts_with("running_"));
}

void run_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  const at::NoGradGuard no_grad;
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  const auto first = stack->size() - count;
  int on = current_device();
  for (std::size_t i = 0; i < count; ++i)
    for_each_tensor((*stack)[first + i], [&](const at::Tensor& each) {
      if (is_ours(each)) on = each.device().index();
    });
  {
    const task run(on, op.operator_name().name);
    for (std::size_t i = 0; i < count; ++i)
      for_each_tensor((*stack)[first + i], [&](const at::Tensor& each) {
        is_written(schema, i) ? run.writes(each) : run.reads(each);
      });
  }
  const std::vector<c10::IValue> given(stack->begin() + static_cast<std::ptrdiff_t>(first),
                                       stack->end());  // alive until the end
  stand_ins all;
  for (std::size_t i = 0; i < count; ++i) (*stack)[first + i] = all.of(given[i]);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  all.take_resized();
  for (auto i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    (*stack)[i] = all.back((*stack)[i], on);
    for_each_tensor((*stack)[i], note_result);
  }
}

/// Rounded correctly, as on a GPU; MKL's, which the CPU's operator uses, is not.
at::Tensor roots_of(const at::Tensor& of) {
  auto made = at::empty_like(of);
  const auto from = as_cpu(of).contiguous();
  auto roots = at::empty(of.sizes(), from.options());
  const auto fill = [&]<class T>(T*) {
    std::transform(from.const_data_ptr<T>(), from.const_data_ptr<T>() + from.numel(),
                   roots.mutable_data_ptr<T>(), [](T each) { return std::sqrt(each); });
  };
  of.scalar_type() == at::kDouble ? fill(static_cast<double*>(nullptr))
                                  : fill(static_cast<float*>(nullptr));
  as_cpu(made).copy_(roots);
  note_result(made);
  return made;
}

at::Tensor sqrt(const at::Tensor& of) {
  {
    const task run(of.device().index(), "aten::sqrt");
    run.reads(of);
  }
  return roots_of(of);
}

std::vector<at::Tensor> foreach_sqrt(at::TensorList of) {
  {
    const task run(of.front().device().index(), "aten::_foreach_sqrt");
    for (const auto& each : of) run.reads(each);
  }
  std::vector<at::Tensor> made;
  for (const auto& each : of) made.push_back(roots_of(each));
  return made;
}

/// The engine's own, so that the choice between implementations is the CPU's.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::IntArrayRef stride,
                       c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                       c10::IntArrayRef /*output_padding*/, std::int64_t groups) {
  TORCH_CHECK(!(bias && bias->defined()) && !transposed,
              "a convolution that the engine does not have");
  const at::NoGradGuard no_grad;
  {
    const task run(input.device().index(), "aten::convolution_overrideable");
    run.reads(input);
    run.reads(weight);
  }
  const auto made =
      engine::convolve(as_cpu(input), as_cpu(weight), {stride[0], padding[0], dilation[0], groups});
  auto back = stand_ins().back(made, input.device().index());
  note_result(back);
  return back;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
    c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation,
    bool /*transposed*/, c10::IntArrayRef /*output_padding*/, std::int64_t groups,
    std::array<bool, 3> wanted) {
  const int on = input.device().index();
  {
    const task run(on, "aten::convolution_backward_overrideable");
    for (const auto* each : {&gradient, &input, &weight}) run.reads(*each);
  }
  // This is below autograd, and uses it again.
  const auto usual = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard with_autograd(
      usual.included_, usual.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  const at::AutoGradMode recorded(true);
  const auto compute = [&](bool to_input) {
    const auto x = as_cpu(input).set_requires_grad(to_input);
    const auto w = as_cpu(weight).set_requires_grad(!to_input);
    const auto y = engine::convolve(x, w, {stride[0], padding[0], dilation[0], groups});
    return torch::autograd::grad({y}, {to_input ? x : w}, {as_cpu(gradient)}).front();
  };
  std::tuple<at::Tensor, at::Tensor, at::Tensor> all;
  if (wanted[0]) std::get<0>(all) = stand_ins().back(compute(true), on);
  if (wanted[1]) std::get<1>(all) = stand_ins().back(compute(false), on);
  note_result(std::get<0>(all));
  note_result(std::get<1>(all));
  return all;
}

}  // namespace

void install() {
  static const bool once = (install_backend(), true);
  static_cast<void>(once);
}

report seen() {
  const std::scoped_lock lock(the_world().mutex);
  auto found = the_world().found;
  const auto& races = the_world().tasks.races();
  found.races.insert(found.races.begin(), races.begin(), races.end());
  return found;
}

void reset() {
  const std::scoped_lock lock(the_world().mutex);
  the_world().found = {};
  the_world().tasks.forget_races();
}

std::uint64_t bytes_in_use(int which) {
  const std::scoped_lock lock(the_world().mutex);
  return the_world().used.at(static_cast<std::size_t>(which));
}

std::uint64_t take_peak_bytes(int which) {
  auto& world = the_world();
  const std::scoped_lock lock(world.mutex);
  const auto index = static_cast<std::size_t>(which);
  return std::exchange(world.peak.at(index), world.used.at(index));
}

void limit_memory(int which, std::uint64_t bytes) {
  const std::scoped_lock lock(the_world().mutex);
  the_world().limit.at(static_cast<std::size_t>(which)) = bytes;
}

void slow_events(std::chrono::milliseconds by) {
  the_world().wait_time = by;
}

at::Tensor peek(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.defined() ? as_cpu(tensor.detach()).clone() : tensor;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("resize_", resize);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("record_stream", record_stream);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("sqrt", sqrt);
  m.impl("_foreach_sqrt", foreach_sqrt);
  // One task for many tensors, as on a GPU; ATen's own form has one for each.
  for (const char* const each :
       {"_foreach_abs", "_foreach_add.List", "_foreach_add.Scalar", "_foreach_add_.List",
        "_foreach_addcmul.Scalar", "_foreach_copy_", "_foreach_div.List", "_foreach_div.Scalar",
        "_foreach_maximum.List", "_foreach_mul.List", "_foreach_mul.Scalar", "_foreach_mul_.Scalar",
        "_foreach_neg", "_foreach_norm.Scalar", "_foreach_reciprocal", "_foreach_sign"})
    m.impl(each, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  // These have forms in other operators too, which round otherwise than the CPU's kernels.
  m.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace troupe::tests::fake_device
