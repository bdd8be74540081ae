// Gradients as one summand.
#include "engine/collective/packing.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/signbit.h>

#include <catch2/catch_test_macros.hpp>

using namespace troupe;

TEST_CASE("tensors of one dtype share memory, in their own layouts, filled up to the ranks") {
  const auto image = at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto bias = at::randn({7});
  const auto exact = at::randn({2}, at::kDouble);
  const auto packed = engine::pack_to_sum({image, bias, exact}, {image, bias, exact}, 4);
  REQUIRE(packed.flat.size() == 2);
  CHECK(packed.flat[0].sizes() == at::IntArrayRef{128});  // 120 + 7, and one more
  CHECK(packed.flat[1].sizes() == at::IntArrayRef{4});
  for (const auto& flat : packed.flat)
    CHECK(at::equal(flat.narrow(0, flat.numel() - 1, 1), at::ones({1}, flat.options()).sub(1)));
  REQUIRE(packed.views.size() == 3);
  CHECK(at::equal(*packed.views[0], image));
  CHECK(packed.views[0]->strides() == image.strides());
  CHECK(at::equal(*packed.views[1], bias));
  CHECK(at::equal(*packed.views[2], exact));
  packed.flat[0].mul_(2);
  CHECK(at::equal(*packed.views[1], bias.mul(2)));
}

TEST_CASE("what a rank does not have changes no bit of a sum") {
  const auto like = at::randn({5});
  const auto packed = engine::pack_to_sum({std::nullopt}, {like}, 1);
  REQUIRE(packed.views[0]);
  CHECK(at::equal(*packed.views[0], at::ones({5}).sub(1)));
  CHECK(at::signbit(*packed.views[0]).all().item<bool>());
}
