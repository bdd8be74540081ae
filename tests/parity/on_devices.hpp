#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/blocks.hpp"
#include "engine/operators/joint_normalization.hpp"
#include "tests/fake_device/fake_device.hpp"
#include "tests/parity/stage_company.hpp"

namespace troupe::tests {

/// Sets what all cases on devices of tests need; attention has one form that they and the CPU have.
struct devices_ready {
  devices_ready() {
    fake_device::install();
    fake_device::reset();
    at::set_num_threads(1);
    at::globalContext().setSDPUseFlash(false);
  }
};

/// No race, no read of device memory by the host, nothing written past an end.
inline void check_no_misuse() {
  const auto found = fake_device::seen();
  for (const auto& each : found.races) UNSCOPED_INFO(each);
  CHECK(found.races.empty());
  for (const auto& each : found.host_reads) UNSCOPED_INFO(each);
  CHECK(found.host_reads.empty());
  CHECK(found.overruns == 0);
}

/// Of the first batch a dry run, and of each a step, within which the host waits for no device, and
/// an evaluation. What is not finite is left out, as a run may say.
inline trained train_on(task what, const std::vector<c10::Device>& devices,
                        homes in = {std::make_shared<home>()}) {
  what.skips_bad_steps = true;
  company all(what, devices, nullptr, std::move(in));
  auto pipeline = all.compose(what);
  trained result;
  auto dry = pipeline.dry_run(what.batches.front(), what.microbatches, 8);
  if (!dry) FAIL(dry.error().text);
  result.dry = std::move(*dry);
  for (const auto& batch : what.batches) {
    const auto before = fake_device::seen().synchronisations;
    const auto outcome = pipeline.train(batch, what.microbatches, what.rate);
    if (!outcome) FAIL(outcome.error().text);
    const auto after = fake_device::seen().synchronisations;
    for (auto i = before.size(); i < after.size(); ++i) UNSCOPED_INFO(after[i]);
    CHECK(after.size() == before.size());
    result.losses.push_back(outcome->loss);
    const auto tested = pipeline.evaluate(batch, what.microbatches);
    if (!tested) FAIL(tested.error().text);
    result.losses.push_back(tested->loss);
    REQUIRE(tested->metrics.size() == 2);
    result.losses.insert(result.losses.end(), tested->metrics.begin(), tested->metrics.end());
  }
  read_stages(pipeline, result);
  return result;
}

/// In each of these places the CPU's bits, and no misuse.
inline void check_parity(const task& what, const std::vector<std::vector<c10::Device>>& places,
                         std::size_t processes = 1) {
  const auto expected = train_on(what, {c10::Device(c10::kCPU)});
  for (const double each : expected.losses) REQUIRE(std::isfinite(each));
  for (const auto& devices : places) {
    INFO(what.schedule << ", " << what.replicas << " replicas of " << what.cuts.size() + 1
                       << " slices on " << devices.size() << " devices, first "
                       << devices.front().str());
    fake_device::reset();
    const auto found = processes == 1 ? train_on(what, devices)
                                      : train_on(what, devices, separate_homes(processes));
    CHECK(fake_device::seen().operators > 0);
    check_no_misuse();
    check_same(expected, found);
  }
}

/// Batch norm over micro-batches by ATen's operators wherever it is, since the kernels that
/// `engine::batch_norm` has on the CPU add in another order. Without running statistics.
class norm_by_operators final : public engine::layer {
 public:
  norm_by_operators(std::string name, std::int64_t channels)
      : layer(std::move(name)),
        weight_(at::ones({channels}, at::kFloat).requires_grad_()),
        bias_(at::zeros({channels}, at::kFloat).requires_grad_()) {}

  at::Tensor forward(const at::Tensor& input, bool training) override {
    constexpr double eps = 1e-5;
    auto* const together = training ? engine::current_norm_sums() : nullptr;
    if (together == nullptr)
      return at::batch_norm(input, weight_, bias_, {}, {}, /*training=*/true, 0, eps, false);
    return engine::normalize_together(
        input,
        {.weight = weight_, .bias = bias_, .eps = eps, .training = true, .together = together});
  }
  [[nodiscard]] std::vector<engine::named_tensor> parameters() const override {
    return {{name() + ".weight", weight_}, {name() + ".bias", bias_}};
  }
  [[nodiscard]] double macs(std::vector<std::int64_t>& /*sample_shape*/) const override {
    return 0;
  }

 private:
  at::Tensor weight_;  // [C] f32
  at::Tensor bias_;    // [C] f32
};

/// Nine layers over images, two of which normalize by operators.
inline engine::model normed_by_operators() {
  const auto random = at::detail::createCPUGenerator(seed);
  engine::model layers;
  layers.push_back(std::make_unique<engine::convolution>(
      "one",
      engine::convolution_options{.in_channels = 3, .out_channels = 8, .kernel = 3, .stride = 2},
      random));
  layers.push_back(std::make_unique<norm_by_operators>("two", 8));
  layers.push_back(std::make_unique<engine::relu>("three"));
  layers.push_back(std::make_unique<engine::convolution>(
      "four",
      engine::convolution_options{.in_channels = 8, .out_channels = 12, .kernel = 3, .stride = 2},
      random));
  layers.push_back(std::make_unique<norm_by_operators>("five", 12));
  layers.push_back(std::make_unique<engine::relu>("six"));
  layers.push_back(std::make_unique<engine::adaptive_average_pool>("seven", 1));
  layers.push_back(std::make_unique<rows>("rows"));
  layers.push_back(std::make_unique<engine::linear>("nine", 12, 10, random));
  return layers;
}

}  // namespace troupe::tests
