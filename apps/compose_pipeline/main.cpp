// Composes a pipeline of three stage actors in one process and trains it to tell quadrants apart.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/randn.h>

#include <cstdio>
#include <memory>

#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "engine/model/blocks.hpp"

using namespace troupe;

int main() {
  const auto random = at::detail::createCPUGenerator(/*seed=*/1);
  engine::model layers;
  layers.push_back(std::make_unique<engine::linear>("hidden1", 2, 64, random));
  layers.push_back(std::make_unique<engine::relu>("relu1"));
  layers.push_back(std::make_unique<engine::linear>("hidden2", 64, 64, random));
  layers.push_back(std::make_unique<engine::relu>("relu2"));
  layers.push_back(std::make_unique<engine::linear>("scores", 64, 4, random));

  actors::system_config config;
  caf::actor_system system(config);
  auto stages = actors::local_stages::spawn(
      system, std::move(layers), /*cuts=*/{2, 4},
      {.optimizer = "sgd", .optimizer_options = {{"momentum", 0.9}}}, optimizers::built_in());
  if (!stages) return std::puts(stages.error().text.c_str()), 1;
  auto pipeline = actors::pipeline::compose(system, stages->handles(), "1f1b");
  if (!pipeline) return std::puts(pipeline.error().text.c_str()), 1;

  for (int step = 1; step <= 200; ++step) {
    const auto points = at::randn({256, 2}, random);                      // [N, 2] f32
    const auto right = at::gt(points, 0).to(at::kLong);                   // [N, 2] i64
    const auto quadrant = right.select(1, 0).add(right.select(1, 1), 2);  // [N] i64
    const auto outcome = pipeline->train({.inputs = points, .labels = quadrant},
                                         /*microbatches=*/8, /*learning_rate=*/0.1);
    if (!outcome) return std::puts(outcome.error().text.c_str()), 1;
    if (step % 50 == 0) std::printf("step %d: loss %.4f\n", step, outcome->loss);
  }
}
