#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace troupe::engine {

/// A point in the work of a stream that others can wait for; null: there is nothing to wait for, as
/// on the CPU. Shared with whoever holds what was made by then, and waited for by any thread.
using ready_event = std::shared_ptr<const c10::Event>;

/// A tensor on a device, there once `made` is past.
struct uploaded_tensor {
  at::Tensor tensor;
  ready_event made;
};

/// A device for one stage: a stream that its arithmetic goes to, whichever of the stage's threads
/// gives it, one for copies that come from elsewhere, and one for what a collective library sends.
/// By LibTorch's generic streams and events, so of any kind of device. On the CPU there are none,
/// and nothing here does anything. The host waits for nothing but events, and for those only in
/// `to_host`. Thread-safe. Errors are torch's exceptions.
class device_streams {
 public:
  /// Throws where there is no such device.
  explicit device_streams(c10::Device on);

  [[nodiscard]] c10::Device device() const noexcept { return on_; }
  [[nodiscard]] bool is_cpu() const noexcept { return on_.is_cpu(); }

  /// While it lives, what this thread does on the device goes to the stream. Scopes nest.
  class scope {
   public:
    explicit scope(const std::optional<c10::Stream>& stream) {
      if (stream) guard_.emplace(*stream);
    }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;

   private:
    std::optional<c10::StreamGuard> guard_;
  };
  [[nodiscard]] scope computing() const { return scope(compute_); }
  [[nodiscard]] scope copying() const { return scope(copy_); }
  [[nodiscard]] scope sending() const { return scope(send_); }

  /// What arithmetic has been given so far.
  [[nodiscard]] ready_event mark() const { return mark_of(compute_); }
  /// The same of the copies' stream.
  [[nodiscard]] ready_event mark_copies() const { return mark_of(copy_); }
  /// Arithmetic that is given later comes after the event.
  void wait(const ready_event& earlier) const { wait_on(compute_, earlier); }
  /// The same of the copies' stream.
  void copies_wait(const ready_event& earlier) const { wait_on(copy_, earlier); }

  /// A tensor that another stage, or the host, has made, for this stage's arithmetic that is given
  /// later; copied where it lies elsewhere. `made`: when it is there. Undefined stays so.
  [[nodiscard]] at::Tensor take(const at::Tensor& tensor, const ready_event& made) const {
    return take_on(compute_, tensor, made);
  }
  /// The same for the copies' stream.
  [[nodiscard]] at::Tensor take_for_copies(const at::Tensor& tensor,
                                           const ready_event& made) const {
    return take_on(copy_, tensor, made);
  }
  /// The same for the stream of sends.
  [[nodiscard]] at::Tensor take_for_sends(const at::Tensor& tensor, const ready_event& made) const {
    return take_on(send_, tensor, made);
  }

  /// Begins a copy of a tensor of the host on this device, behind other copies, for `take`. The
  /// calling thread copies it into pinned memory.
  [[nodiscard]] uploaded_tensor upload(const at::Tensor& tensor) const;

 private:
  [[nodiscard]] at::Tensor copy_here(const at::Tensor& tensor) const;
  [[nodiscard]] static ready_event mark_of(const std::optional<c10::Stream>& stream);
  static void wait_on(const std::optional<c10::Stream>& stream, const ready_event& earlier);
  [[nodiscard]] at::Tensor take_on(const std::optional<c10::Stream>& stream,
                                   const at::Tensor& tensor, const ready_event& made) const;

  c10::Device on_;
  std::optional<c10::Stream> compute_;
  std::optional<c10::Stream> copy_;
  std::optional<c10::Stream> send_;
};

/// Bytes that a device has free; nothing where it cannot tell, as the CPU.
[[nodiscard]] std::optional<std::uint64_t> free_bytes_on(c10::Device device);

/// The most bytes that tensors and workspaces of this process have held on a device at once, so
/// far, by LibTorch's allocator; nothing where it does not count them, as on the CPU. Something of
/// this process must have been there.
[[nodiscard]] std::optional<std::uint64_t> peak_bytes_on(c10::Device device);

/// Copies on the CPU by way of pinned memory, `tensors` themselves where they lie there. The
/// calling thread waits for one event a device, not for the device: behind `made`, or else behind
/// what its current stream there has been given. Undefined tensors stay so.
[[nodiscard]] std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& tensors,
                                              const ready_event& made = {});
[[nodiscard]] at::Tensor to_host(const at::Tensor& tensor, const ready_event& made = {});

/// A copy on a device of a tensor of the host, by way of pinned memory: behind what the calling
/// thread's current stream there has been given, and not waited for. The tensor itself for the CPU.
[[nodiscard]] at::Tensor from_host(const at::Tensor& tensor, c10::Device on);

/// The numbers of each of these tensors, which lie on the CPU or on one device, in f64: one copy
/// from there, for which the calling thread waits as `to_host` does. An undefined one has none.
[[nodiscard]] std::vector<std::vector<double>> numbers_on_host(
    const std::vector<at::Tensor>& tensors);

/// A copy on the CPU, which shares nothing with the tensor.
[[nodiscard]] inline at::Tensor copy_on_host(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor.clone() : to_host(tensor);
}

}  // namespace troupe::engine
