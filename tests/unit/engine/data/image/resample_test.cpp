#include "engine/data/image/resample.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "engine/base/random.hpp"

namespace {

using namespace troupe::engine;

std::vector<std::uint8_t> random_pixels(std::int64_t count) {
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(count));
  splitmix64 random(3);
  for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(random.below(256));
  return pixels;
}

// [1, 3, height, width] f32
at::Tensor as_tensor(std::vector<std::uint8_t>& pixels, std::int64_t height, std::int64_t width) {
  return at::from_blob(pixels.data(), {1, height, width, 3}, at::TensorOptions().dtype(at::kByte))
      .permute({0, 3, 1, 2})
      .to(at::kFloat)
      .contiguous();
}

at::Tensor ours(const std::vector<std::uint8_t>& pixels, std::int64_t height, std::int64_t width,
                std::int64_t side) {
  auto out = at::empty({1, 3, side, side}, at::TensorOptions().dtype(at::kFloat));
  const std::array<channel_scale, 3> plain;
  resampler(width, height, side)
      .run(pixels, plain,
           {out.mutable_data_ptr<float>(), static_cast<std::size_t>(3 * side * side)});
  return out;
}

double largest_difference(const at::Tensor& left, const at::Tensor& right) {
  return (left - right).abs().max().item<double>();
}

// Resized as torchvision's Resize, without the crop.
at::Tensor theirs(std::vector<std::uint8_t>& pixels, std::int64_t height, std::int64_t width,
                  std::int64_t side) {
  const auto shorter = std::min(height, width);
  return at::_upsample_bilinear2d_aa(as_tensor(pixels, height, width),
                                     {side * height / shorter, side * width / shorter}, false);
}

}  // namespace

TEST_CASE("an enlarged image equals torch's bilinear one") {
  auto pixels = random_pixels(28L * 28 * 3);
  const auto expected = at::upsample_bilinear2d(as_tensor(pixels, 28, 28), {32, 32}, false);
  CHECK(largest_difference(ours(pixels, 28, 28, 32), expected) < 1e-3);
}

TEST_CASE("an image of the right size is left as it is") {
  auto pixels = random_pixels(9L * 9 * 3);
  CHECK(largest_difference(ours(pixels, 9, 9, 9), as_tensor(pixels, 9, 9)) == 0);
}

TEST_CASE("a shrunk image equals torch's antialiased one, cut as torchvision cuts") {
  struct sizes {
    std::int64_t height, width, side;
  };
  for (const auto& [height, width, side] :
       {sizes{50, 70, 24}, {70, 50, 24}, {333, 500, 224}, {40, 37, 8}, {11, 200, 5}, {7, 9, 20}}) {
    auto pixels = random_pixels(height * width * 3);
    const auto whole = theirs(pixels, height, width, side);
    const auto top = std::lrint(static_cast<double>(whole.size(2) - side) / 2);
    const auto left = std::lrint(static_cast<double>(whole.size(3) - side) / 2);
    const auto expected = whole.narrow(2, top, side).narrow(3, left, side);
    INFO(height << "x" << width << " to " << side);
    CHECK(largest_difference(ours(pixels, height, width, side), expected) < 1e-2);
  }
}

TEST_CASE("extreme shapes keep a flat colour flat") {
  struct sizes {
    std::int64_t height, width, side;
  };
  for (const auto& [height, width, side] :
       {sizes{1, 1, 224}, {1, 30000, 16}, {30000, 1, 16}, {2, 3, 1}, {5, 5, 1}, {1, 2, 3}}) {
    const std::vector<std::uint8_t> pixels(static_cast<std::size_t>(height * width * 3), 200);
    const auto out = ours(pixels, height, width, side);
    INFO(height << "x" << width << " to " << side);
    CHECK((out - 200).abs().max().item<double>() < 1e-3);
  }
}

TEST_CASE("values are normalised by their channel's mean and deviation") {
  const std::vector<std::uint8_t> pixels{0, 255};
  std::array<float, 1> plane{};
  resampler(2, 1, 1).run(pixels, std::array{channel_scale::normalising(0.25F, 0.5F)}, plane);
  // The shorter side stays 1; of the two pixels the crop at 0.5, rounded to even, takes the first.
  CHECK(std::abs(plane[0] - (0 - 0.25F) / 0.5F) < 1e-6);
}
