#pragma once

#include <cstdint>
#include <string_view>

/// Convolution kernels of the house for CPUs, on channels_last tensors. docs/kernels.md says where
/// they run instead of oneDNN's, and how fast.
namespace troupe::engine::kernels {

/// A two-dimensional convolution of one group without dilation: `in` channels of height x width
/// give `out` channels. Each number is at least 1, `padding` at least 0.
struct convolution_shape {
  std::int64_t images = 1;
  std::int64_t in = 1;
  std::int64_t height = 1;
  std::int64_t width = 1;
  std::int64_t out = 1;
  std::int64_t kernel_height = 1;
  std::int64_t kernel_width = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;

  [[nodiscard]] std::int64_t out_height() const noexcept {
    return (height + 2 * padding - kernel_height) / stride + 1;
  }
  [[nodiscard]] std::int64_t out_width() const noexcept {
    return (width + 2 * padding - kernel_width) / stride + 1;
  }
};

/// Instruction sets that kernels are compiled for.
enum class instructions : std::uint8_t {
  portable,
  avx2,         ///< AVX2 and FMA.
  avx512,       ///< AVX-512 F, BW, DQ and VL.
  avx512_bf16,  ///< The same with products of pairs in bf16; in f32 it is `avx512`.
};

/// Whether this CPU has them.
[[nodiscard]] bool has(instructions which) noexcept;

/// The best this CPU has.
[[nodiscard]] instructions best_instructions() noexcept;

/// Whether it multiplies whole matrices in bf16 (AMX), as oneDNN then does and these kernels do
/// not. False as well where the environment's ONEDNN_MAX_CPU_ISA keeps oneDNN from that.
[[nodiscard]] bool has_amx() noexcept;

/// Whether oneDNN uses AMX under a value of ONEDNN_MAX_CPU_ISA; what it does not know limits
/// nothing.
[[nodiscard]] bool leaves_amx(std::string_view onednn_limit) noexcept;

struct tile_kernel;

/// The tiles of a kernel for them. `pairs`: products of pairs in bf16, which `avx512_bf16` has.
[[nodiscard]] tile_kernel tiles_of(instructions which, bool pairs);

/// Writes the gradient of a convolution's weight, [out, kernel_height, kernel_width, in] f32, to
/// `to`; with `sum` what that has is added to each number, and it may be `to`: the bits of
/// computing the gradient first. T is float or c10::BFloat16. `input` is [images, height, width,
/// in], `gradient` of the output [images, out_height, out_width, out]. Products are summed in f32.
///
/// Tiles of the gradient are shared out among ATen's intra-op threads, and each number is added up
/// by one of them in an order that depends on the shape alone: the same bits on every number of
/// threads. Allocates its scratch memory with c10's allocator. Needs a CPU that `has` the
/// instructions.
///
/// The tile of sums in registers over streams of packed operands is that of Goto and van de Geijn,
/// "Anatomy of High-Performance Matrix Multiplication", 2008.
template <class T>
void weight_gradient(instructions with, const convolution_shape& of, const T* input,
                     const T* gradient, float* to, const float* sum = nullptr);

/// Whether `weight_gradient` was measured to be clearly faster than oneDNN's on such a shape: see
/// docs/kernels.md. `amx`: on a CPU that `has_amx`. Does not depend on the number of images. T as
/// above.
template <class T>
[[nodiscard]] bool outruns_onednn(instructions with, bool amx,
                                  const convolution_shape& of) noexcept;

}  // namespace troupe::engine::kernels
