// Batch norm over micro-batches by ATen's operators, which stages on devices have: what PyTorch's
// batch norm makes of all of them in one batch, and on a device of tests the CPU's bits.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/device_streams.hpp"
#include "engine/operators/joint_normalization.hpp"
#include "engine/stage/norm_lanes.hpp"
#include "tests/fake_device/fake_device.hpp"

namespace {

namespace fake = troupe::tests::fake_device;
using namespace troupe;

constexpr double norm_eps = 1e-5;
constexpr double norm_momentum = 0.1;
const engine::norm_exchange no_others = [](engine::norm_sum, engine::norm_part own) { return own; };

/// Three micro-batches of different means, on the CPU.
struct given_microbatches {
  std::vector<at::Tensor> inputs, seeds;  // [3, 1 and 4 samples, C, ..]

  [[nodiscard]] std::int64_t channels() const { return inputs.front().size(1); }
};

given_microbatches draw_microbatches(const std::vector<std::int64_t>& rest, at::ScalarType type) {
  const auto random = at::make_generator<at::CPUGeneratorImpl>(4);
  given_microbatches made;
  for (const std::int64_t samples : {3, 1, 4}) {
    std::vector<std::int64_t> shape{samples};
    shape.insert(shape.end(), rest.begin(), rest.end());
    const auto center = static_cast<double>(samples);
    made.inputs.push_back((at::randn(shape, random, at::kFloat) + center).to(type));
    made.seeds.push_back(at::randn(shape, random, at::kFloat).to(type));
  }
  return made;
}

at::Tensor some_weight(std::int64_t channels) {
  return at::linspace(0.5, 1.5, channels, at::kFloat);
}

/// Outputs and gradients of inputs of all micro-batches, sums of the gradients of weight and bias,
/// and running statistics.
using normed = std::vector<std::pair<std::string, at::Tensor>>;

/// A lane's backward stays in its thread, as on a stage's work thread; what was set before is set
/// again for other tests.
struct backward_in_lane {
  backward_in_lane() { state().set_multithreading_enabled(false); }
  backward_in_lane(const backward_in_lane&) = delete;
  backward_in_lane& operator=(const backward_in_lane&) = delete;
  ~backward_in_lane() { state().set_multithreading_enabled(before); }
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }

  const bool before = state().get_multithreading_enabled();
};

normed normalize_in_lanes(const given_microbatches& from, c10::Device on) {
  const engine::device_streams streams(on);
  const auto on_device = streams.computing();
  const auto leaf = [on](const at::Tensor& host) {
    return engine::from_host(host, on).detach().requires_grad_();
  };
  const auto channels = from.channels();
  const auto weight = leaf(some_weight(channels));
  const auto bias = leaf(some_weight(channels) - 1);
  const auto mean = engine::from_host(at::zeros({channels}, at::kFloat), on);
  const auto variance = engine::from_host(at::ones({channels}, at::kFloat), on);
  std::vector<at::Tensor> inputs(3), outputs(3), of_inputs(3), of_weight(3), of_bias(3);
  engine::norm_lanes lanes("lanes", 3, 1);
  const auto run_lanes = [&](const auto& body) {
    std::vector<engine::lane_task> tasks;
    for (std::size_t i = 0; i < 3; ++i)
      tasks.push_back({i, i == 0, [&streams, &body, i] {
                         const auto in_lane = streams.computing();
                         const backward_in_lane autograd;
                         body(i);
                       }});
    lanes.run(tasks, no_others);
  };
  run_lanes([&](std::size_t i) {
    inputs[i] = leaf(from.inputs[i]);
    const bool counts = engine::current_norm_sums()->counts();
    outputs[i] =
        engine::normalize_together(inputs[i], {.weight = weight,
                                               .bias = bias,
                                               .running_mean = counts ? mean : at::Tensor(),
                                               .running_var = counts ? variance : at::Tensor(),
                                               .momentum = norm_momentum,
                                               .eps = norm_eps,
                                               .training = true,
                                               .together = engine::current_norm_sums()});
  });
  run_lanes([&](std::size_t i) {
    const auto found = torch::autograd::grad({outputs[i]}, {inputs[i], weight, bias},
                                             {engine::from_host(from.seeds[i], on)});
    of_inputs[i] = found[0];
    of_weight[i] = found[1];
    of_bias[i] = found[2];
  });
  const auto host =
      engine::to_host({at::cat(outputs).detach(), at::cat(of_inputs), at::stack(of_weight).sum(0),
                       at::stack(of_bias).sum(0), mean, variance});
  return {{"output", host[0]}, {"input", host[1]},        {"weight", host[2]},
          {"bias", host[3]},   {"running mean", host[4]}, {"running variance", host[5]}};
}

normed normalize_in_one_batch(const given_microbatches& from) {
  const auto wide = [](const std::vector<at::Tensor>& parts) {
    return at::cat(parts).to(at::kDouble);
  };
  const auto channels = from.channels();
  const auto input = wide(from.inputs).requires_grad_();
  const auto weight = some_weight(channels).to(at::kDouble).requires_grad_();
  const auto bias = (some_weight(channels) - 1).to(at::kDouble).requires_grad_();
  const auto mean = at::zeros({channels}, at::kDouble);
  const auto variance = at::ones({channels}, at::kDouble);
  const auto output = at::batch_norm(input, weight, bias, mean, variance, /*training=*/true,
                                     norm_momentum, norm_eps, /*cudnn_enabled=*/false);
  const auto found = torch::autograd::grad({output}, {input, weight, bias}, {wide(from.seeds)});
  return {{"output", output.detach()}, {"input", found[0]},    {"weight", found[1]},
          {"bias", found[2]},          {"running mean", mean}, {"running variance", variance}};
}

const std::vector<std::vector<std::int64_t>> shapes{{5, 6, 7}, {5}, {5, 9}, {20, 1, 1}};

}  // namespace

TEST_CASE("Batch norm over micro-batches by operators is PyTorch's over all of them in one batch") {
  fake::install();
  for (const auto& rest : shapes)
    for (const auto& [type, apart] :
         {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 2e-2)}) {
      INFO(rest.size() << " dimensions of " << c10::toString(type));
      const auto from = draw_microbatches(rest, type);
      const auto found = normalize_in_lanes(from, c10::kCPU);
      const auto expected = normalize_in_one_batch(from);
      for (std::size_t i = 0; i < found.size(); ++i) {
        INFO(found[i].first);
        CHECK(at::allclose(found[i].second.to(at::kDouble), expected[i].second, apart, apart));
      }
    }
}

TEST_CASE("On a device it has the CPU's bits, and each sum waits for one event and no device") {
  fake::install();
  for (const auto& rest : shapes) {
    INFO(rest.size() << " dimensions");
    const auto from = draw_microbatches(rest, at::kFloat);
    const auto here = normalize_in_lanes(from, c10::kCPU);
    fake::reset();
    const auto there = normalize_in_lanes(from, fake::device(0));
    const auto seen = fake::seen();
    for (std::size_t i = 0; i < here.size(); ++i) {
      INFO(here[i].first);
      CHECK(at::equal(here[i].second, there[i].second));
    }
    for (const auto& each : seen.races) UNSCOPED_INFO(each);
    CHECK(seen.races.empty());
    CHECK(seen.host_reads.empty());
    for (const auto& each : seen.synchronisations) UNSCOPED_INFO(each);
    CHECK(seen.synchronisations.empty());
    CHECK(seen.event_waits == 2 * 3 + 1);  // forward and backward of three, and what is read here
    CHECK(seen.overruns == 0);
  }
}

TEST_CASE("By operators, one value per channel is not enough, and integers are refused") {
  fake::install();
  const auto weight = some_weight(2);
  const auto normalize_one = [&](const at::Tensor& input) {
    engine::norm_lanes lanes("lanes", 1, 1);
    const engine::lane_task task{0, true, [&] {
                                   static_cast<void>(engine::normalize_together(
                                       input, {.weight = weight,
                                               .bias = weight,
                                               .eps = norm_eps,
                                               .training = true,
                                               .together = engine::current_norm_sums()}));
                                 }};
    lanes.run({task}, no_others);
  };
  CHECK_THROWS_WITH(normalize_one(at::full({1, 2, 1, 1}, 3, at::kFloat)),
                    Catch::Matchers::ContainsSubstring("more than 1 value"));
  CHECK_THROWS_WITH(normalize_one(at::full({4, 2}, 3, at::kLong)),
                    Catch::Matchers::ContainsSubstring("takes f32, bf16 or fp16 of [N, C, ..]"));
}
