// Batch norm that is synchronized over replicas, on the devices of tests: by operators with the
// CPU's bits, without misuse and without a wait for a device within a step.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/model/model.hpp"
#include "tests/fake_device/fake_device.hpp"
#include "tests/parity/on_devices.hpp"
#include "tests/parity/stage_company.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;

std::vector<c10::Device> first_devices(int count) {
  std::vector<c10::Device> all;
  for (int i = 0; i < count; ++i) all.push_back(fake_device::device(i));
  return all;
}

/// Groups of up to four micro-batches.
task norms_together(engine::model (*build)(), std::vector<engine::batch> batches) {
  return {.build = build,
          .batches = std::move(batches),
          .logical = 4,
          .synced_norm = true,
          .microbatches = 8};
}

}  // namespace

TEST_CASE("Stages on devices normalize together with the CPU's bits, in lanes and over replicas") {
  const devices_ready ready;
  const std::vector<c10::Device> mixed{fake_device::device(0), c10::kCPU};
  auto what = norms_together(normed_by_operators, images({16, 12}));
  check_parity(what, {first_devices(1)});
  what.replicas = 2;
  check_parity(what, {first_devices(1), first_devices(2)});
  what.cuts = {3};
  what.schedule = "zb-h1";
  what.shares_state = true;
  check_parity(what, {first_devices(1), first_devices(4), mixed});
  what.schedule = "1f1b";
  what.recompute = engine::layer_names(normed_by_operators());
  check_parity(what, {first_devices(2)});
  what.replicas = 4;
  what.batches = images({16, 3});  // for one of four nothing in the second
  check_parity(what, {first_devices(1)});
}

TEST_CASE("Stages on devices in different processes normalize together with the CPU's bits") {
  const devices_ready ready;
  fake_device::slow_events(std::chrono::milliseconds(2));
  auto what = norms_together(normed_by_operators, images({16}));
  what.replicas = 2;
  what.cuts = {3};
  check_parity(what, {first_devices(1), first_devices(4)}, 4);
  fake_device::slow_events({});
}

TEST_CASE("Batch norm on devices has the same bits on any number of replicas") {
  const devices_ready ready;
  auto what = norms_together(resnet, images({16, 10}));
  const auto expected = train_on(what, first_devices(1));
  for (const std::uint32_t replicas : {2U, 4U}) {
    INFO(replicas << " replicas");
    fake_device::reset();
    what.replicas = replicas;
    check_same(expected, train_on(what, first_devices(2)));
    check_no_misuse();
  }
}

// Where an activation is within rounding of zero, its gradient passes on one side alone (see
// norm_parity.cpp), so one of several batches must agree closely.
TEST_CASE("Replicas on devices normalize together as those on CPUs do, within rounding") {
  const devices_ready ready;
  double closest = 1;
  for (int draw = 0; draw < 6 && closest > 1e-3; ++draw) {
    auto what = norms_together(resnet, images({16}));
    what.replicas = 2;
    const auto here = train_on(what, {c10::Device(c10::kCPU)});
    fake_device::reset();
    const auto there = train_on(what, first_devices(2));
    CHECK(fake_device::seen().operators > 0);
    check_no_misuse();
    CHECK_THAT(there.dry.loss, Catch::Matchers::WithinRel(here.dry.loss, 1e-5));
    CHECK(distance(there.dry.buffers, here.dry.buffers) < 1e-4);
    const auto apart = distance(there.dry.gradients, here.dry.gradients);
    CHECK(apart < 0.05);
    closest = std::min(closest, apart);
  }
  CHECK(closest <= 1e-3);
}
