#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

namespace troupe::engine {

/// What a weight is copied to.
enum class weight_form : std::uint8_t {
  cast,            ///< In the type of the arithmetic, in the weight's own layout.
  forward,         ///< In that type, and in the layout of oneDNN's forward.
  input_gradient,  ///< The same of its input gradient.
};

/// Copies of one weight that its layer's arithmetic reads in its place. Each is made when it is
/// first needed, and serves all micro-batches, forward and backward, until the weight changes.
///
/// They belong to a state of the weight: its storage and its version, which every operator that
/// writes in place counts up, and so does each optimizer. What writes past operators has to count
/// too (`bump_version`). A weight without a version, made in inference mode, has no copies kept.
///
/// Used by one thread at a time, as the layer is.
class weight_copies {
 public:
  using maker = std::function<at::Tensor()>;

  /// The copy in this form for arithmetic in `type`: what `make` gives, unless it is there. It
  /// belongs to no micro-batch: the thread's storage_watch leaves it out. Torch's exceptions pass
  /// through.
  [[nodiscard]] at::Tensor get(const at::Tensor& weight, at::ScalarType type, weight_form form,
                               const maker& make);

  /// Bytes of the copies that are kept, up to what a layout pads.
  [[nodiscard]] std::uint64_t bytes() const;

 private:
  /// A state of a weight, in the type of an arithmetic.
  struct origin {
    // Keeps the object, not the memory: no other storage can take its address.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data = nullptr;
    std::uint32_t version = 0;
    at::ScalarType type = at::kFloat;

    [[nodiscard]] bool is(const at::Tensor& weight, at::ScalarType as) const;
  };

  static constexpr std::size_t forms = 3;

  std::optional<origin> of_;
  std::array<at::Tensor, forms> copies_;
};

}  // namespace troupe::engine
