// What a micro-batch keeps for its backward is counted, and given back to the last byte.

#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "apps/resnet_pipeline/resnet.hpp"
#include "engine/autograd/storage_watch.hpp"
#include "engine/model/model.hpp"
#include "engine/stage/stage_module.hpp"

namespace {

using namespace troupe;
using engine::stage_module;
using engine::step_kind;

constexpr engine::step_key first_step{{1}, {1}};

struct variant {
  bool bf16 = false;
  bool channels_last = false;
};

/// The layers [first, last) of a ResNet-18.
stage_module slice(std::size_t first, std::size_t last, const variant& how) {
  auto layers = apps::build_resnet("resnet18", 10, 1).value();
  auto part = engine::take_layers(layers, {first, last}).value();
  engine::to_memory_format(part, how.channels_last);
  return stage_module(std::move(part),
                      {.is_first = first == 0,
                       .is_last = last == layers.size(),
                       .precision = how.bf16 ? engine::precision::bf16 : engine::precision::fp32,
                       .channels_last = how.channels_last});
}

}  // namespace

TEST_CASE("contexts hold bytes from forward to backward, and none after it") {
  const auto how = GENERATE(variant{}, variant{.channels_last = true}, variant{true, true});
  auto front = slice(0, 8, how), back = slice(8, 14, how);
  const auto images = at::randn({2, 3, 64, 64});
  const auto labels = at::randint(0, 10, {2}, at::kLong);
  std::uint64_t after_one = 0;
  for (std::uint32_t i = 0; i < 2; ++i) {
    const auto middle =
        front.forward(first_step, step_kind::training, {i}, images, {}, 4).activation;
    back.forward(first_step, step_kind::training, {i}, middle, labels, 4);
    if (i == 0) after_one = front.contexts().bytes(first_step);
  }
  // What the first convolution keeps is not all: the block outputs alone are more.
  CHECK(after_one > static_cast<std::uint64_t>(images.numel()) * 4);
  CHECK(front.contexts().bytes(first_step) == 2 * after_one);
  CHECK(front.contexts().bytes({{1}, {2}}) == 0);
  const auto back_full = back.contexts().bytes(first_step);

  // The input gradient frees what the weights' gradients do not need.
  auto gradient = back.backward_input(first_step, {0}, {});
  const auto after_input = back.contexts().bytes(first_step);
  CHECK(after_input < back_full);
  CHECK(after_input > back_full / 2);
  back.backward_weights(first_step, {0});
  CHECK(back.contexts().bytes(first_step) == back_full / 2);
  front.backward_input(first_step, {0}, gradient);
  front.backward_weights(first_step, {0});
  CHECK(front.contexts().bytes(first_step) == after_one);

  gradient = back.backward_input(first_step, {1}, {});
  back.backward_weights(first_step, {1});
  front.backward_input(first_step, {1}, gradient);
  front.backward_weights(first_step, {1});
  CHECK(back.contexts().bytes(first_step) == 0);
  CHECK(front.contexts().bytes(first_step) == 0);
  // More than both forwards left: gradients that W needs come before its activations go.
  const auto peak = front.take_peak_context_bytes();
  CHECK(peak >= 2 * after_one);
  CHECK(peak < 3 * after_one);
  CHECK(front.take_peak_context_bytes() == 0);
}

TEST_CASE("what outlives its micro-batch's backward is held until it is freed, and no longer") {
  engine::microbatch_contexts held;
  at::Tensor kept;
  for (std::uint64_t number = 1; number <= 3; ++number) {
    kept.reset();
    const engine::step_key key{{}, {number}};
    held.put(key, {}, {});
    kept = at::ones({16});
    engine::watched_storages made;
    made.add(kept);
    held.charge(key, {}, made);
    REQUIRE(held.take(key, {}));
    held.count(key, {});
    static_cast<void>(held.take_peak_bytes());
    CHECK(held.take_peak_bytes() == 64);  // what is held now: of this step alone
  }
}

TEST_CASE("an evaluation keeps nothing") {
  auto whole = slice(0, 14, {});
  whole.forward(first_step, step_kind::evaluation, {0}, at::randn({2, 3, 64, 64}),
                at::randint(0, 10, {2}, at::kLong), 2);
  CHECK(whole.contexts().bytes(first_step) == 0);
  CHECK(whole.take_peak_context_bytes() == 0);
}

TEST_CASE("a tensor that somebody keeps is seen, and what is left out is not") {
  const auto outside = at::randn({16});
  at::Tensor kept;
  engine::watched_storages made;
  {
    engine::storage_watch watch;
    kept = outside.add(1).view({4, 4});
    const auto gone = outside.mul(2);
    const auto alias = outside.view({4, 4});
    made = watch.take();
  }
  made.leave_out(outside);
  const auto unseen = outside.add(2);
  CHECK(made.live_bytes() == 64);
  engine::watched_storages again;
  again.add(outside.detach());
  again.add(unseen);
  made.merge(again);
  CHECK(made.live_bytes() == 128);
  kept.reset();
  CHECK(made.live_bytes() == 64);
}

TEST_CASE("a sparse tensor is its indices and its values") {
  const auto gradient =
      at::sparse_coo_tensor(at::zeros({1, 4}, at::kLong), at::ones({4, 8}), {16, 8});
  engine::watched_storages made;
  made.add(gradient);
  CHECK(made.live_bytes() == 4 * 8 + 4 * 8 * 4);
  made.leave_out(gradient);
  CHECK(made.live_bytes() == 0);
}
