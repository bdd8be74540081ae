// The table of what a predicted step spends in each layer and kind of work.

#include "engine/partition/tables/layer_table.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <string>
#include <utility>

namespace {

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using Catch::Matchers::WithinRel;

/// What two samples cost in a convolution, a layer without weights, and a linear one.
model_profile three_layers() {
  const layer_cost convolution{.name = "conv",
                               .forward_s = 0.2,
                               .input_s = 0.1,
                               .weight_s = 0.4,
                               .output_bytes = 4e9,
                               .parameter_bytes = 1'000'000'000,
                               .update_s = 0.5,
                               .macs = 1e10};
  const layer_cost pool{.name = "pool", .forward_s = 0.1, .input_s = 0.2, .output_bytes = 1e9};
  const layer_cost linear{.name = "fc",
                          .forward_s = 0.1,
                          .input_s = 0.1,
                          .weight_s = 0.05,
                          .output_bytes = 8,
                          .parameter_bytes = 100,
                          .update_s = 0.01,
                          .macs = 1e9};
  return {2, {convolution, pool, linear}};
}

struct predicted_step {
  cost_model costs = cost_model::fit({three_layers()}).value();
  planning how;
  prediction made;

  explicit predicted_step(planning asked)
      : how(std::move(asked)), made(predict(costs, how, 4, {1}).value()) {}

  [[nodiscard]] step_work work() const { return work_of(costs, how, made); }
};

planning two_stages() {
  return {.stages = 2, .batch_size = 8, .cores = 2, .bytes_per_s = 1e11, .sample_bytes = 1e9};
}

double last_number(const std::string& line) {
  return std::stod(line.substr(line.find_last_of(' ') + 1));
}

}  // namespace

TEST_CASE("What a step spends in its layers, in sending and in idling is the time of all stages") {
  for (const bool recomputes : {false, true})
    for (const std::uint32_t cores : {1U, 2U}) {
      auto how = two_stages();
      how.cores = cores;
      how.recompute = {recomputes, false, false};
      const predicted_step step(how);
      const auto work = step.work();
      CHECK_THAT(work.seconds(), WithinRel(2 * step.made.step_s, 1e-12));
      CHECK_THAT(work.sending_s, WithinRel(4 * 2 * 4e9 / 1e11, 1e-9));  // there, and back
      CHECK_THAT(work.idle_s, WithinRel(step.made.bubble * 2 * step.made.step_s, 1e-9));
      CHECK_THAT(work.layers[0].forward.seconds, WithinRel(recomputes ? 1.6 : 0.8, 1e-12));
    }
}

TEST_CASE("Work is counted where it is done: no gradient of samples, none of missing weights") {
  const auto layers = predicted_step(two_stages()).work().layers;
  REQUIRE(layers.size() == 3);
  CHECK_THAT(layers[0].forward.flops, WithinRel(2 * 1e10 * 8, 1e-12));
  CHECK(layers[0].input_gradient.flops == 0);
  CHECK(layers[0].weight_gradient.flops == layers[0].forward.flops);
  CHECK(layers[1].forward.flops == 0);
  CHECK(layers[1].weight_gradient.flops == 0);
  CHECK(layers[2].input_gradient.flops == layers[2].forward.flops);
  // Samples and output of all micro-batches, and the weights with each.
  CHECK_THAT(layers[0].forward.bytes, WithinRel(8 * 1e9 + 4 * 4e9 + 4 * 1e9, 1e-12));
  CHECK_THAT(layers[1].forward.bytes, WithinRel(4 * 4e9 + 4 * 1e9, 1e-12));
  CHECK_THAT(layers[0].update.bytes, WithinRel(update_passes * 1e9, 1e-12));
  // Gradients are as large as what they are of; a sum of four is written each time and read thrice.
  CHECK(layers[0].input_gradient.bytes == 0);
  CHECK_THAT(layers[0].weight_gradient.bytes, WithinRel(8 * 1e9 + 4 * 4e9 + 7 * 1e9, 1e-12));
  CHECK_THAT(layers[1].input_gradient.bytes, WithinRel(4 * 4e9 + 4 * 1e9, 1e-12));
  CHECK(layers[1].weight_gradient.bytes == 0);
  CHECK_THAT(layers[2].input_gradient.bytes, WithinRel(4 * 1e9 + 4 * 8 + 4 * 100, 1e-12));
}

TEST_CASE("The lines of a step add up, and show rates beside what a stage reaches at most") {
  const auto lines = to_lines(predicted_step(two_stages()).work(), {5e11, 2e10});
  REQUIRE(lines.size() == 10);
  double sum = 0;
  for (const std::size_t i : {2U, 3U, 4U, 7U, 8U}) sum += last_number(lines[i]);
  CHECK_THAT(lines[5], StartsWith("all layers "));
  CHECK_THAT(lines[6], StartsWith("a stage at most ") && ContainsSubstring(" 500.0    20.0"));
  CHECK_THAT(lines[7], StartsWith("sending "));
  CHECK_THAT(lines[8], StartsWith("idle "));
  CHECK_THAT(lines[9], StartsWith("in all "));
  CHECK(std::abs(sum - last_number(lines[9])) < 0.3);  // each is rounded to 0.1 ms
  // 160 GFLOP in 0.8 s, 28 GB in the same, no gradient of the samples, and that of the weights.
  CHECK_THAT(lines[2], ContainsSubstring("    800.0   200.0    35.0    400.0       -       -"
                                         "   1600.0   100.0    19.4 "));
  for (const auto& line : lines) CHECK(line.size() <= 120);
}

TEST_CASE("Where no rates of the machine were measured there is no line of them") {
  const auto lines = to_lines(predicted_step(two_stages()).work(), {});
  CHECK(lines.size() == 9);
  for (const auto& line : lines) CHECK_THAT(line, !ContainsSubstring("at most"));
}
