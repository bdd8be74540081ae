// Stages on the devices of tests train with the CPU's bits, and nothing that a GPU would do wrong
// without a word: no race between streams, no early read of the host, no wait for a device within a
// step.

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "actors/pipeline/pipeline.hpp"
#include "engine/model/blocks.hpp"
#include "engine/model/model.hpp"
#include "engine/verify/verification.hpp"
#include "optimizers/training/saved_state.hpp"
#include "tests/fake_device/fake_device.hpp"
#include "tests/parity/on_devices.hpp"
#include "tests/parity/one_piece.hpp"
#include "tests/parity/stage_company.hpp"
#include "tests/small_residual_network.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
namespace fake = tests::fake_device;

c10::Device on(int index) {
  return fake::device(index);
}

/// Its batch norms see enough numbers that rounding stays rounding.
engine::model small_images() {
  const auto random = at::detail::createCPUGenerator(tests::seed);
  engine::model layers;
  layers.push_back(std::make_unique<engine::convolution>(
      "one",
      engine::convolution_options{.in_channels = 3, .out_channels = 16, .kernel = 3, .padding = 1},
      random));
  layers.push_back(std::make_unique<engine::batch_norm>("two", 16));
  layers.push_back(std::make_unique<engine::relu>("three"));
  layers.push_back(std::make_unique<engine::max_pool>("four", 3, 2, 1));
  layers.push_back(std::make_unique<engine::convolution>(
      "five",
      engine::convolution_options{.in_channels = 16, .out_channels = 32, .kernel = 3, .stride = 2},
      random));
  layers.push_back(std::make_unique<engine::batch_norm>("six", 32));
  layers.push_back(std::make_unique<engine::relu>("seven"));
  layers.push_back(std::make_unique<engine::adaptive_average_pool>("eight", 1));
  layers.push_back(std::make_unique<rows>("rows"));
  layers.push_back(std::make_unique<engine::linear>("nine", 32, 10, random));
  return layers;
}

}  // namespace

TEST_CASE("Stages on devices train images to the CPU's bits under every schedule") {
  const tests::devices_ready ready;
  const std::vector<c10::Device> one{on(0)}, two{on(0), on(1)}, mixed{on(0), c10::kCPU};
  check_parity({.build = resnet, .batches = images({9, 8})}, {one});
  check_parity({.build = resnet, .batches = images({9, 8}), .cuts = {5}}, {one, two, mixed});
  check_parity({.build = resnet, .batches = images({8}), .cuts = {3, 5, 7}, .schedule = "zb-h1"},
               {one, two});
  check_parity({.build = resnet, .batches = images({8}), .cuts = {3, 5, 7}, .schedule = "zb-v"},
               {one, two});
  check_parity({.build = resnet,
                .batches = images({8}),
                .cuts = {3, 5, 7},
                .schedule = "interleaved-1f1b",
                .recompute = {"layer1", "layer2"}},
               {two});
  for (const char* const schedule : {"gpipe", "zb-h2"})
    check_parity({.build = resnet, .batches = images({8}), .cuts = {5}, .schedule = schedule},
                 {two});
}

TEST_CASE("Stages on devices in different processes send by way of the host") {
  const tests::devices_ready ready;
  const std::vector<c10::Device> one{on(0)}, two{on(0), on(1)}, mixed{on(0), c10::kCPU};
  fake::slow_events(std::chrono::milliseconds(2));
  check_parity({.build = resnet, .batches = images({9, 8}), .cuts = {3, 5, 7}}, {one, two, mixed},
               4);
  check_parity({.build = decoder,
                .batches = sentences({8, 7}),
                .cuts = {2},
                .schedule = "zb-h1",
                .optimizer = "adamw",
                .options = {},
                .clip_norm = 0.1},
               {one, two}, 2);
  fake::slow_events({});
}

TEST_CASE("Stages on devices train tied weights with dropout, clipping and a loss scale") {
  const tests::devices_ready ready;
  const std::vector<c10::Device> one{on(0)}, two{on(0), on(1)}, mixed{c10::kCPU, on(2)};
  check_parity(
      {.build = decoder, .batches = sentences({8, 7}), .optimizer = "adamw", .options = {}}, {one});
  check_parity({.build = decoder,
                .batches = sentences({8, 7, 8}),
                .cuts = {2},
                .schedule = "zb-h1",
                .optimizer = "adamw",
                .options = {},
                .rules = {.clip_value = 0.02, .accumulate = 2},
                .clip_norm = 0.1,
                .loss_scale = 64},
               {one, two, mixed});
  for (const char* const schedule : {"interleaved-1f1b", "zb-v"})
    check_parity({.build = decoder,
                  .batches = sentences({8, 7}),
                  .cuts = {2, 4, 5},
                  .schedule = schedule,
                  .optimizer = "adamw",
                  .options = {},
                  .clip_norm = 0.1,
                  .loss_scale = 64},
                 {one, two});
}

TEST_CASE("At the end of a step the host waits once a stage, when all before the update is given") {
  const tests::devices_ready ready;
  const task what{.build = decoder,
                  .batches = sentences({8, 7, 8}),
                  .optimizer = "adamw",
                  .options = {},
                  .rules = {.clip_value = 0.02, .accumulate = 3},
                  .clip_norm = 0.1,
                  .loss_scale = 64,
                  .skips_bad_steps = true};
  auto cut = what;
  cut.cuts = {2};
  const auto waits_of = [](const task& of, const std::vector<c10::Device>& devices) {
    company all(of, devices);
    auto pipeline = all.compose(of);
    std::vector<std::uint64_t> waits;
    for (const auto& batch : of.batches) {
      const auto before = fake::seen();
      const auto outcome = pipeline.train(batch, microbatches, rate);
      if (!outcome) FAIL(outcome.error().text);
      waits.push_back(fake::seen().event_waits - before.event_waits);
      // The first two steps have no update: their gradients are added up before the wait.
      const bool updates = waits.size() == of.batches.size();
      if (of.cuts.empty()) CHECK((fake::seen().operators_since_wait > 0) == updates);
      CHECK(fake::seen().synchronisations.size() == before.synchronisations.size());
    }
    return waits;
  };
  CHECK(waits_of(what, {on(0)}) == std::vector<std::uint64_t>{1, 1, 1});
  CHECK(waits_of(cut, {on(0)}) == std::vector<std::uint64_t>{2, 2, 2});
  CHECK(waits_of(cut, {on(0), on(1)}) == std::vector<std::uint64_t>{2, 2, 2});
}

TEST_CASE("A step that is not finite leaves no trace on devices, and is told of as on the CPU") {
  const tests::devices_ready ready;
  task what{.build = resnet,
            .batches = images({8, 8, 8, 8}),
            .cuts = {5},
            .rules = {.accumulate = 2},
            .skips_bad_steps = true};
  what.batches[1].inputs.fill_(std::numeric_limits<float>::infinity());
  const auto run = [&](const std::vector<c10::Device>& devices) {
    company all(what, devices);
    auto pipeline = all.compose(what);
    std::vector<std::string> told;
    for (const auto& batch : what.batches) {
      const auto outcome = pipeline.train(batch, microbatches, rate);
      if (!outcome) FAIL(outcome.error().text);
      told.push_back(outcome->skipped);
    }
    trained result;
    tests::read_stages(pipeline, result);
    return std::pair(told, std::move(result));
  };
  const auto here = run({c10::Device(c10::kCPU)}), there = run({on(0), on(1)});
  CHECK_THAT(here.first.at(1),
             Catch::Matchers::ContainsSubstring("the loss of micro-batch 0 is NaN"));
  CHECK(there.first == here.first);
  check_same(here.second.weights, there.second.weights);
  check_same(here.second.state, there.second.state);
  check_no_misuse();
}

TEST_CASE("Replicas on devices train to the CPU's bits, with shared state too") {
  const tests::devices_ready ready;
  const std::vector<c10::Device> one{on(0)}, four{on(0), on(1), on(2), on(3)};
  for (const bool shares_state : {false, true}) {
    check_parity({.build = resnet,
                  .batches = images({9, 8}),
                  .cuts = {6},
                  .replicas = 2,
                  .shares_state = shares_state},
                 {one, four});
    check_parity({.build = decoder,
                  .batches = sentences({8, 7}),
                  .cuts = {2},
                  .optimizer = "adamw",
                  .options = {},
                  .replicas = 2,
                  .shares_state = shares_state,
                  .clip_norm = 0.1},
                 {one, four});
    check_parity({.build = decoder,
                  .batches = sentences({8, 7}),
                  .cuts = {2},
                  .schedule = "zb-h1",
                  .rules = {.clip_value = 0.02, .accumulate = 2},
                  .replicas = 2,
                  .shares_state = shares_state,
                  .clip_norm = 0.1,
                  .loss_scale = 64},
                 {four});
  }
}

TEST_CASE("Stages on devices train in channels_last as the CPU does, within rounding") {
  const tests::devices_ready ready;
  task what{.build = small_images, .batches = images({16}), .cuts = {4}, .schedule = "zb-h1"};
  const auto plain = train_on(what, {on(0), on(1)});
  what.channels_last = true;
  const auto here = train_on(what, {c10::Device(c10::kCPU)});
  for (const auto& devices : {std::vector<c10::Device>{on(0)}, {on(0), on(1)}}) {
    fake::reset();
    const auto there = train_on(what, devices);
    CHECK(fake::seen().operators > 0);
    check_no_misuse();
    // The CPU's own kernels add in another order than ATen's.
    CHECK_THAT(there.dry.loss, Catch::Matchers::WithinRel(here.dry.loss, 1e-5));
    tests::check_close(there.dry, here.dry, 1e-3);
    CHECK_THAT(there.dry.loss, Catch::Matchers::WithinRel(plain.dry.loss, 1e-5));
  }
}

TEST_CASE("What a run saves from devices, devices and the CPU load and go on from") {
  const tests::devices_ready ready;
  const task what{.build = resnet,
                  .batches = images({8, 8}),
                  .cuts = {6},
                  .optimizer = "adam",
                  .options = {},
                  .skips_bad_steps = true};
  const auto first = train_on(what, {on(0), on(1)});
  const auto go_on = [&](const std::vector<c10::Device>& devices) {
    company all(what, devices);
    auto pipeline = all.compose(what);
    for (std::uint32_t stage = 0; stage < 2; ++stage) {
      std::vector<engine::named_tensor> weights, state;
      const auto own = engine::layer_names(what.build());
      const auto layers = what.build();
      std::size_t begin = stage == 0 ? 0 : 6, end = stage == 0 ? 6 : layers.size();
      for (const auto& each : first.weights)
        for (auto i = begin; i < end; ++i)
          if (each.name.starts_with(own[i] + "."))
            weights.push_back({each.name, each.tensor.clone()});
      for (const auto& each : first.state)
        for (const auto& weight : weights)
          if (optimizers::parameter_of(each.name) == weight.name)
            state.push_back({each.name, each.tensor.clone()});  // the optimizer writes them
      if (const auto loaded = pipeline.load_weights(stage, weights); !loaded)
        FAIL(loaded.error().text);
      if (const auto loaded = pipeline.load_state(stage, state); !loaded) FAIL(loaded.error().text);
    }
    const auto outcome = pipeline.train(what.batches.front(), microbatches, rate);
    if (!outcome) FAIL(outcome.error().text);
    auto weights = pipeline.read_weights().value();
    return std::pair(outcome->loss, std::move(weights));
  };
  const auto here = go_on({c10::Device(c10::kCPU)});
  fake::reset();
  const auto there = go_on({on(1), on(2)});
  check_no_misuse();
  CHECK(here.first == there.first);
  check_same(here.second, there.second);
}

TEST_CASE("A step on devices passes verification against one process, every bit") {
  const tests::devices_ready ready;
  const auto batches = images({8});
  const task what{.build = resnet,
                  .batches = batches,
                  .cuts = {6},
                  .schedule = "zb-h1",
                  .skips_bad_steps = true};
  const auto found = train_on(what, {on(0), on(1)});
  const auto parts = engine::split_batch(batches.front(), microbatches).value();
  const auto alone = tests::run_in_one_piece(what.build(), {.seed = tests::seed}, 1, parts, 8);
  const auto outcome = engine::compare(found.dry, alone, 0);
  for (const auto& line : engine::to_lines(outcome)) UNSCOPED_INFO(line);
  CHECK(outcome.passed());
}

TEST_CASE("A device that is full is told of with stage, action and bytes, and what to do") {
  const tests::devices_ready ready;
  const task what{.build = resnet, .batches = images({64}), .cuts = {6}, .skips_bad_steps = true};
  company all(what, {on(3)});
  auto pipeline = all.compose(what);
  fake::limit_memory(3, fake::bytes_in_use(3) + (1U << 20));
  const auto outcome = pipeline.train(what.batches.front(), microbatches, rate);
  fake::limit_memory(3, 0);
  REQUIRE_FALSE(outcome);
  CHECK_THAT(outcome.error().text,
             Catch::Matchers::Matches(
                 "stage-0: F[0-9]+.* failed: fake:3 out of memory\\. Tried to allocate [0-9]+ "
                 "bytes, of [0-9]+ bytes are [0-9]+ free\\. Use a smaller micro-batch, or "
                 "recompute activations \\(pipeline\\.recompute\\)"));
}
