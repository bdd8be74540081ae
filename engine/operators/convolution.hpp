#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace troupe::engine {

class weight_copies;

/// How a square kernel moves over an image; the same along both sides.
struct convolution_geometry {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
};

/// Two-dimensional convolution without bias, recorded by autograd: `input` [n, c, h, w] and
/// `weight` [k, c / groups, r, r] give [n, k, h', w']. The arithmetic is in the input's type, or
/// autocast's; the weight is cast to it. `weight` is a parameter, and leaves its gradient to the
/// `weight_gradient_collector` of the thread that goes backward, if there is one.
///
/// On a CPU a channels_last weight gradient is left to the kernel of engine/kernels where that is
/// faster, with its sum in f32; the rest, in f32, always goes through oneDNN, where ATen switches
/// between two implementations by the number of images and threads: so results do not depend on how
/// a batch is cut.
///
/// `copies`, of this weight: the cast weight, and for channels_last inputs on a CPU the weight in
/// oneDNN's layouts, are made once for all micro-batches that use it unchanged. Null: each forward
/// and each backward makes its own. The bits are the same. Errors are torch's exceptions.
[[nodiscard]] at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight,
                                  const convolution_geometry& how,
                                  const std::shared_ptr<weight_copies>& copies = nullptr);

}  // namespace troupe::engine
