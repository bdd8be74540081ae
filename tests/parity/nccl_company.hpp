#pragma once

#include <ATen/ops/allclose.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <caf/send.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/pipeline/pipeline.hpp"
#include "engine/collective/nccl/maker.hpp"
#include "tests/fake_device/fake_device.hpp"
#include "tests/fake_device/nccl_device.hpp"
#include "tests/parity/on_devices.hpp"
#include "tests/parity/stage_company.hpp"

/// Stages on the devices of tests, which sum over replicas, and send to other processes, by the
/// NCCL of tests.
namespace troupe::tests {

using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
namespace fake = fake_device;
using maker = collectives;

inline const fake_nccl::controls& library() {
  static const fake_nccl::controls all(TROUPE_FAKE_NCCL);
  return all;
}

/// NCCL's ports, on the devices of tests.
inline maker nccl_maker(engine::nccl::patience waits = {},
                        std::function<void(const std::string&)> hung = {}) {
  return std::make_shared<engine::nccl::maker>(engine::nccl::maker_options{
      .places = {.named = TROUPE_FAKE_NCCL},
      .type = c10::DeviceType::PrivateUse1,
      .device_for = [](c10::Device on) -> result<std::shared_ptr<engine::nccl::device>> {
        return fake::make_nccl_device(library(), on);
      },
      .waits = waits,
      .hung = std::move(hung)});
}

/// What goes wrong at a call of a function that is so many after the next.
inline void script(const std::string& function, const std::string& what, int after = 0) {
  const int call = library().calls_of(function.c_str()) + 1 + after;
  ::setenv("FAKE_NCCL_SCRIPT", (function + ":" + std::to_string(call) + ":" + what).c_str(), 1);
}

inline trained train(const task& what, const std::vector<c10::Device>& devices,
                     const maker& sums_by = nullptr, homes in = {std::make_shared<home>()}) {
  company all(what, devices, sums_by, std::move(in));
  auto pipeline = all.compose(what);
  trained result{.line = pipeline.sum_line() + pipeline.edge_line(),
                 .losses = {},
                 .weights = {},
                 .state = {},
                 .dry = {}};
  auto dry = pipeline.dry_run(what.batches.front(), microbatches);
  if (!dry) FAIL(dry.error().text);
  result.dry = std::move(*dry);
  for (const auto& batch : what.batches) {
    const auto before = fake::seen().synchronisations.size();
    const auto outcome = pipeline.train(batch, microbatches, rate);
    if (!outcome) FAIL(outcome.error().text);
    CHECK(fake::seen().synchronisations.size() == before);
    result.losses.push_back(outcome->loss);
  }
  read_stages(pipeline, result);
  return result;
}

/// The thread that calls NCCL may not wait for the device, and an allocation can (docs/gpu.md).
inline void check_nothing_found() {
  check_no_misuse();
  CHECK(fake::seen().late_allocations == 0);
  CHECK(library().wrong_uses() == std::string());
}

struct prepared : devices_ready {
  prepared() { ::unsetenv("FAKE_NCCL_SCRIPT"); }
};

/// A decoder in two stages, for two steps.
inline task two_stages_by(engine::edge_transport edges) {
  return {.build = decoder,
          .batches = sentences({8, 8}),
          .cuts = {2},
          .optimizer = "adamw",
          .options = {},
          .edges = edges};
}

inline std::vector<c10::Device> cards(int count) {
  std::vector<c10::Device> all;
  for (int i = 0; i < count; ++i) all.push_back(fake::device(i));
  return all;
}

}  // namespace troupe::tests
