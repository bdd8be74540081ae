// The weight gradients of the house's kernel: against exact ones, and against oneDNN's and those in
// f64, with every instruction set that this CPU has.

#include "engine/kernels/weight_gradient.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/util/BFloat16.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "engine/kernels/machine_rates.hpp"
#include "engine/kernels/pixel_walk.hpp"

namespace {

using namespace troupe::engine::kernels;

constexpr auto channels_last = at::MemoryFormat::ChannelsLast;

struct operands {
  at::Tensor input;     // [images, in, height, width]
  at::Tensor gradient;  // [images, out, out height, out width]

  [[nodiscard]] operands to(at::ScalarType type) const {
    return {input.to(type).contiguous(channels_last), gradient.to(type).contiguous(channels_last)};
  }
};

std::array<std::int64_t, 4> input_sizes(const convolution_shape& of) {
  return {of.images, of.in, of.height, of.width};
}

std::array<std::int64_t, 4> gradient_sizes(const convolution_shape& of) {
  return {of.images, of.out, of.out_height(), of.out_width()};
}

std::array<std::int64_t, 4> weight_sizes(const convolution_shape& of) {
  return {of.out, of.in, of.kernel_height, of.kernel_width};
}

/// Whole numbers, all sums of whose products are exact in f32, and in any order.
operands whole_numbers(const convolution_shape& of) {
  return {at::randint(-4, 5, input_sizes(of), at::kFloat).contiguous(channels_last),
          at::randint(-4, 5, gradient_sizes(of), at::kFloat).contiguous(channels_last)};
}

operands random_numbers(const convolution_shape& of) {
  return {at::randn(input_sizes(of)).contiguous(channels_last),
          at::randn(gradient_sizes(of)).contiguous(channels_last)};
}

/// ATen's, which is oneDNN's in f32.
at::Tensor theirs(const convolution_shape& of, const operands& given) {
  const std::array<std::int64_t, 2> stride{of.stride, of.stride};
  const std::array<std::int64_t, 2> padding{of.padding, of.padding};
  const auto weight = at::empty(weight_sizes(of), given.input.options()).contiguous(channels_last);
  return std::get<1>(at::convolution_backward(given.gradient, given.input, weight,
                                              at::OptionalIntArrayRef(), stride, padding, {1, 1},
                                              false, {0, 0}, 1, {false, true, false}));
}

void write_ours(instructions with, const convolution_shape& of, const operands& given,
                at::Tensor& to, const at::Tensor& sum) {
  const float* const added = sum.defined() ? sum.const_data_ptr<float>() : nullptr;
  if (given.input.scalar_type() == at::kFloat)
    weight_gradient(with, of, given.input.const_data_ptr<float>(),
                    given.gradient.const_data_ptr<float>(), to.mutable_data_ptr<float>(), added);
  else
    weight_gradient(with, of, given.input.const_data_ptr<c10::BFloat16>(),
                    given.gradient.const_data_ptr<c10::BFloat16>(), to.mutable_data_ptr<float>(),
                    added);
}

/// Every number is written: what was there before is not a number.
at::Tensor ours(instructions with, const convolution_shape& of, const operands& given,
                const at::Tensor& sum = {}) {
  auto made = at::full(weight_sizes(of), std::nan("")).to(at::kFloat).contiguous(channels_last);
  write_ours(with, of, given, made, sum);
  return made;
}

/// The root of the mean square of what is wrong, beside that of what is right.
double error(const at::Tensor& found, const at::Tensor& exact) {
  return found.to(at::kDouble).sub(exact).norm().div(exact.norm()).item().toDouble();
}

std::string name_of(const convolution_shape& of) {
  return std::to_string(of.images) + " images " + std::to_string(of.in) + " -> " +
         std::to_string(of.out) + " channels, " + std::to_string(of.height) + " x " +
         std::to_string(of.width) + ", kernel " + std::to_string(of.kernel_height) + " x " +
         std::to_string(of.kernel_width) + ", stride " + std::to_string(of.stride) + ", padding " +
         std::to_string(of.padding);
}

/// One of the instruction sets; the test is skipped where this CPU lacks it.
instructions any_instructions() {
  const auto which = GENERATE(instructions::portable, instructions::avx2, instructions::avx512,
                              instructions::avx512_bf16);
  if (!has(which)) SKIP("this CPU lacks instruction set " << static_cast<int>(which));
  return which;
}

/// Sides, strides and channels that fit no tile, vector or pair.
const std::vector<convolution_shape> odd_shapes{
    {1, 1, 1, 1, 1, 1, 1, 1, 0},    {1, 16, 4, 4, 6, 3, 3, 1, 1},  {2, 17, 5, 7, 13, 3, 3, 1, 1},
    {3, 3, 13, 9, 8, 7, 7, 2, 3},   {1, 64, 1, 1, 7, 3, 3, 1, 1},  {2, 80, 5, 5, 64, 3, 3, 2, 1},
    {2, 16, 9, 10, 5, 2, 3, 3, 2},  {1, 48, 6, 11, 9, 1, 1, 2, 0}, {2, 33, 7, 8, 11, 1, 1, 2, 1},
    {4, 96, 3, 2, 26, 1, 1, 1, 0},  {1, 32, 2, 2, 3, 1, 5, 1, 2},  {2, 128, 6, 6, 12, 5, 5, 1, 2},
    {1, 64, 70, 66, 7, 3, 3, 1, 1}, {2, 20, 90, 91, 6, 3, 3, 2, 0}};

/// With panels of both operands: parts of a tile's columns and rows, of groups of tiles, of
/// vectors, and of the pixels that are copied together; in one block and in several.
const std::vector<convolution_shape> many_channels{{3, 272, 5, 7, 250, 1, 1, 1, 0},
                                                   {2, 128, 29, 27, 519, 1, 1, 1, 0},
                                                   {2, 144, 7, 9, 601, 3, 3, 2, 1},
                                                   {3, 300, 9, 6, 230, 1, 1, 2, 1},
                                                   {1, 260, 1, 1, 260, 3, 3, 1, 1}};

/// The convolutions of ResNet-18 and ResNet-50, of few small images.
std::vector<convolution_shape> resnet_shapes() {
  std::vector<convolution_shape> found;
  const auto add = [&](std::int64_t in, std::int64_t out, std::int64_t side, std::int64_t kernel,
                       std::int64_t stride) {
    found.push_back({2, in, side, side, out, kernel, kernel, stride, kernel / 2});
  };
  add(3, 64, 64, 7, 2);
  std::int64_t side = 16;
  for (const std::int64_t width : {64, 128, 256, 512}) {
    add(width, width, side, 3, 1);
    add(width, 4 * width, side, 1, 1);
    add(4 * width, width, side, 1, 1);
    if (width < 512) {
      add(width, 2 * width, side, 3, 2);
      add(2 * width, 2 * width, side, 3, 2);
      add(width, 2 * width, side, 1, 2);
      add(4 * width, 2 * width, side, 1, 1);
      add(4 * width, 8 * width, side, 1, 2);
    }
    side /= 2;
  }
  add(64, 64, 16, 1, 1);
  return found;
}

}  // namespace

TEST_CASE("Weight gradients of whole numbers are exact, whatever the shape") {
  const auto with = any_instructions();
  const at::NoGradGuard no_grad;
  for (const auto* shapes : {&odd_shapes, &many_channels})
    for (const auto& of : *shapes) {
      INFO(name_of(of));
      const auto given = whole_numbers(of);
      const auto exact = theirs(of, given.to(at::kDouble)).to(at::kFloat);
      CHECK(at::equal(ours(with, of, given), exact));
      CHECK(at::equal(ours(with, of, given.to(at::kBFloat16)), exact));
    }
}

TEST_CASE("Weight gradients from panels have the bits of those of a few channels, without panels") {
  const auto with = any_instructions();
  const at::NoGradGuard no_grad;
  for (const convolution_shape& of : {convolution_shape{2, 272, 29, 27, 250, 1, 1, 1, 0},
                                      convolution_shape{3, 272, 12, 14, 250, 3, 3, 2, 1},
                                      convolution_shape{3, 272, 20, 19, 250, 1, 1, 2, 0}}) {
    INFO(name_of(of));
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const auto given = random_numbers(of).to(type);
      const auto found = ours(with, of, given);
      auto few = of;
      few.in = 80;
      for (const std::int64_t first : {0, 96, 192}) {
        const operands part{given.input.narrow(1, first, few.in), given.gradient};
        CHECK(at::equal(ours(with, few, part.to(type)), found.narrow(1, first, few.in)));
      }
    }
  }
}

TEST_CASE("Weight gradients are no further from those in f64 than oneDNN's") {
  const auto with = any_instructions();
  const at::NoGradGuard no_grad;
  double own = 0;
  double other = 0;
  for (const auto& of : resnet_shapes()) {
    INFO(name_of(of));
    const auto given = random_numbers(of);
    const auto exact = theirs(of, given.to(at::kDouble));
    const auto found = error(ours(with, of, given), exact);
    const auto peers = error(theirs(of, given), exact);
    CHECK(found < 2 * peers + 1e-7);
    own += found;
    other += peers;
    const auto half = given.to(at::kBFloat16);
    const auto exact_of_half = theirs(of, half.to(at::kDouble));
    CHECK(error(ours(with, of, half), exact_of_half) < error(theirs(of, half), exact_of_half));
  }
  INFO(own << " beside oneDNN's " << other);
  CHECK(own <= other);
}

TEST_CASE("A weight gradient added to a sum has the bits of one that is added afterwards") {
  const auto with = any_instructions();
  const at::NoGradGuard no_grad;
  // Of one block and of several, in whole tiles and in parts of them.
  for (const convolution_shape& of : {convolution_shape{2, 64, 8, 8, 12, 3, 3, 1, 1},
                                      convolution_shape{3, 80, 32, 32, 70, 3, 3, 1, 1},
                                      convolution_shape{1, 64, 64, 64, 64, 1, 1, 1, 0},
                                      convolution_shape{2, 272, 29, 27, 250, 1, 1, 1, 0}}) {
    INFO(name_of(of));
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const auto given = random_numbers(of).to(type);
      auto sum = at::randn(weight_sizes(of)).contiguous(channels_last);
      const auto expected = at::add(sum, ours(with, of, given));
      CHECK(at::equal(ours(with, of, given, sum), expected));
      write_ours(with, of, given, sum, sum);
      CHECK(at::equal(sum, expected));
    }
  }
}

TEST_CASE("Weight gradients have the same bits on every number of threads") {
  const auto with = any_instructions();
  const at::NoGradGuard no_grad;
  const auto before = at::get_num_threads();
  for (const convolution_shape& of : {convolution_shape{3, 80, 30, 31, 70, 3, 3, 1, 1},
                                      convolution_shape{3, 272, 18, 17, 300, 1, 1, 2, 0}})
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      INFO(name_of(of));
      const auto given = random_numbers(of).to(type);
      at::set_num_threads(1);
      const auto expected = ours(with, of, given);
      for (const int threads : {2, 3}) {
        at::set_num_threads(threads);
        CHECK(at::equal(ours(with, of, given), expected));
      }
    }
  at::set_num_threads(before);
}

TEST_CASE("Blocks have every row of the output once and are of nearly the same size") {
  for (const convolution_shape& of : {convolution_shape{15, 64, 32, 32, 256, 1, 1, 1, 0},
                                      convolution_shape{7, 512, 4, 4, 512, 3, 3, 1, 1},
                                      convolution_shape{2, 256, 300, 200, 64, 3, 3, 2, 1}}) {
    INFO(name_of(of));
    const auto blocks = blocks_of(of);
    std::int64_t next = 0;  // row of all images
    std::int64_t least = of.images * of.out_height();
    std::int64_t most = 0;
    for (const auto& block : blocks) {
      CHECK(block.first_image * of.out_height() + block.first_row == next);
      const auto rows = block.images() * block.rows();
      next += rows;
      least = std::min(least, rows);
      most = std::max(most, rows);
      CHECK((block.images() == 1 || block.rows() == of.out_height()));
    }
    CHECK(next == of.images * of.out_height());
    CHECK(most - least <= of.out_height());
    CHECK(most <= 2 * least);
  }
}

TEST_CASE("Shapes that were not measured to be faster are left to oneDNN") {
  const auto best = instructions::avx512_bf16;
  const convolution_shape measured{15, 128, 32, 32, 128, 3, 3, 2, 1};
  CHECK(outruns_onednn<float>(best, false, measured));
  CHECK(outruns_onednn<c10::BFloat16>(best, false, measured));
  CHECK_FALSE(outruns_onednn<c10::BFloat16>(instructions::portable, false, measured));
  CHECK_FALSE(outruns_onednn<float>(best, false, {15, 3, 128, 128, 64, 7, 7, 2, 3}));
  CHECK_FALSE(outruns_onednn<float>(best, false, {15, 72, 16, 16, 64, 3, 3, 1, 1}));
  const convolution_shape of_one_pixel{15, 64, 32, 32, 256, 1, 1, 1, 0};
  CHECK(outruns_onednn<float>(best, false, of_one_pixel));
  CHECK_FALSE(outruns_onednn<c10::BFloat16>(best, false, of_one_pixel));
  CHECK(outruns_onednn<float>(instructions::avx2, false, measured));
  CHECK_FALSE(outruns_onednn<float>(instructions::avx2, false, of_one_pixel));
  CHECK(outruns_onednn<c10::BFloat16>(instructions::avx2, false, of_one_pixel));
}

TEST_CASE("On a CPU with AMX small images and many channels alone are not left to oneDNN") {
  const auto best = instructions::avx512_bf16;
  const convolution_shape large{15, 128, 16, 16, 128, 3, 3, 1, 1};
  const convolution_shape medium{15, 256, 8, 8, 256, 3, 3, 1, 1};
  const convolution_shape small{15, 512, 4, 4, 512, 3, 3, 1, 1};
  const convolution_shape point{15, 512, 4, 4, 2048, 1, 1, 1, 0};
  const convolution_shape medium_point{15, 256, 8, 8, 1024, 1, 1, 1, 0};
  const convolution_shape large_point{15, 256, 32, 32, 512, 1, 1, 2, 0};
  const convolution_shape deep_point{15, 1024, 16, 16, 256, 1, 1, 1, 0};
  CHECK_FALSE(outruns_onednn<float>(best, true, large));
  CHECK(outruns_onednn<float>(best, true, medium));
  CHECK(outruns_onednn<float>(best, true, point));
  CHECK(outruns_onednn<float>(best, true, medium_point));
  CHECK(outruns_onednn<float>(best, true, deep_point));
  CHECK_FALSE(outruns_onednn<float>(best, true, large_point));
  CHECK_FALSE(outruns_onednn<float>(best, true, {15, 1024, 32, 32, 128, 1, 1, 1, 0}));
  CHECK_FALSE(outruns_onednn<c10::BFloat16>(best, true, medium));
  CHECK(outruns_onednn<c10::BFloat16>(best, true, small));
  CHECK_FALSE(outruns_onednn<c10::BFloat16>(best, true, point));
  CHECK_FALSE(outruns_onednn<c10::BFloat16>(best, true, deep_point));
}

TEST_CASE("A limit of oneDNN's instruction sets holds for the choice of kernels too") {
  for (const auto* none : {"", "ALL", "default", "AVX512_CORE_AMX", "avx10_1_512_amx", "other"})
    CHECK(leaves_amx(none));
  for (const auto* limit : {"SSE41", "AVX2", "AVX512_CORE_BF16", "avx512_core_fp16"})
    CHECK_FALSE(leaves_amx(limit));
}

TEST_CASE("The rates of a machine are those of a thread, and bf16 is not much slower than f32") {
  const auto one = measure_rates(arithmetic::f32, 1);
  const auto many = measure_rates(arithmetic::f32, 8);
  for (const auto& each : {one, many}) {
    CHECK(each.flops_per_s > 1e7);
    CHECK(each.flops_per_s < 1e13);
    CHECK(each.memory_bytes_per_s > 1e6);
    CHECK(each.memory_bytes_per_s < 1e12);
  }
  // Means, not sums, which would be eight times as much; the rest is room for other work.
  CHECK(many.flops_per_s < 4 * one.flops_per_s);
  CHECK(measure_flops_per_s(arithmetic::bf16) > 0.25 * measure_flops_per_s(arithmetic::f32));
}
