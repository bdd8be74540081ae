#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "engine/operators/convolution.hpp"

namespace troupe::engine {

/// A geometry as ATen takes it.
struct convolution_sides {
  explicit convolution_sides(const convolution_geometry& of)
      : stride{of.stride, of.stride},
        padding{of.padding, of.padding},
        dilation{of.dilation, of.dilation},
        groups(of.groups) {}

  std::array<std::int64_t, 2> stride;
  std::array<std::int64_t, 2> padding;
  std::array<std::int64_t, 2> dilation;
  std::int64_t groups;
};

/// oneDNN's convolution over weights that were brought into its own layout before. Its operators do
/// so each time they are given a weight as tensors lie; the bits are the same. Weights are in the
/// input's type. What a layout is best for depends on the input's shape, what comes out does not.

/// Whether these operators are there and do what the convolution over this input takes. None of
/// several groups: transposed, oneDNN adds its products up in another order.
[[nodiscard]] bool takes_packed(const at::Tensor& input, const convolution_sides& how);

/// The same of the operators for the input's gradient. None of bf16 with strides where a CPU has
/// AMX: its transposed convolution adds products up in another order there.
[[nodiscard]] bool takes_packed_gradient(const at::Tensor& input, const convolution_sides& how);

/// An opaque tensor.
[[nodiscard]] at::Tensor pack_for_forward(const at::Tensor& weight, at::IntArrayRef input_shape,
                                          const convolution_sides& how);
[[nodiscard]] at::Tensor packed_forward(const at::Tensor& input, const at::Tensor& packed,
                                        const convolution_sides& how);

/// The same for the input's gradient, a transposed convolution of the output's. `kernel`: the sizes
/// of the weight.
[[nodiscard]] at::Tensor pack_for_input_gradient(const at::Tensor& weight,
                                                 at::IntArrayRef input_shape,
                                                 at::IntArrayRef output_shape,
                                                 const convolution_sides& how);
[[nodiscard]] at::Tensor packed_input_gradient(const at::Tensor& gradient, const at::Tensor& packed,
                                               at::IntArrayRef input_shape, at::IntArrayRef kernel,
                                               const convolution_sides& how);

}  // namespace troupe::engine
