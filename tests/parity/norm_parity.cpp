// Batch norm that is synchronized over replicas: what PyTorch's batch norm makes of the
// micro-batches of one index in one process, and the same bits whatever the number of replicas.

#include <ATen/ops/cat.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "tests/parity/one_piece.hpp"
#include "tests/parity/stage_company.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::WithinRel;
using namespace std::chrono_literals;

task synchronized_norms(std::vector<engine::batch> batches) {
  return {.build = resnet,
          .batches = std::move(batches),
          .logical = 4,
          .synced_norm = true,
          .clip_norm = 0.5,
          .microbatches = 8,
          .rate = 0.05};
}

using norm_groups = std::vector<std::vector<std::size_t>>;

/// One process, in which PyTorch's batch norm sees these micro-batches of the batch at a time.
engine::step_result run_alone(const engine::batch& batch, std::uint32_t microbatches,
                              const norm_groups& groups) {
  const auto parts = engine::split_batch(batch, microbatches).value();
  std::vector<engine::batch> together;
  for (const auto& group : groups) {
    std::vector<at::Tensor> inputs, labels;
    for (const auto i : group) {
      inputs.push_back(parts.at(i).inputs);
      labels.push_back(parts.at(i).labels);
    }
    together.push_back({at::cat(inputs), at::cat(labels)});
  }
  return tests::run_in_one_piece(resnet(), {.seed = seed}, 1, together);
}

/// In about one batch of eight an activation lies so close to zero that rounding decides whether a
/// ReLU lets its gradient pass, and PyTorch's rounding is another one. Gradients before it are 1%
/// apart then. So one of several batches must agree closely; an error of ours would show in all.
void check_as_alone(task what, const norm_groups& groups) {
  what.replicas = 2;
  const auto size = what.batches.front().inputs.size(0);
  double closest = 1;
  for (int draw = 0; draw < 6 && closest > 1e-3; ++draw) {
    company all(what, {c10::Device(c10::kCPU)});
    auto pipeline = all.compose(what);
    const auto batch = images({size}).front();
    const auto found = pipeline.dry_run(batch, what.microbatches);
    if (!found) FAIL(found.error().text);
    const auto alone = run_alone(batch, what.microbatches, groups);
    CHECK_THAT(found->loss, WithinRel(alone.loss, 1e-5));
    CHECK(distance(found->buffers, alone.buffers) < 1e-4);
    const auto apart = distance(found->gradients, alone.gradients);
    CHECK(apart < 0.05);
    closest = std::min(closest, apart);
  }
  CHECK(closest <= 1e-3);
}

}  // namespace

TEST_CASE("Synchronized batch norm is that of one process over all replicas' micro-batches") {
  const auto what = synchronized_norms(images({16, 7, 10}));
  check_ways(what, {{.replicas = 2},
                    {.replicas = 4},
                    {.cuts = {5}},
                    {.replicas = 2, .cuts = {5}, .schedule = "zb-h1"},
                    {.replicas = 4, .cuts = {3, 6}, .schedule = "gpipe", .shares_state = true},
                    {.replicas = 2, .recompute = engine::layer_names(resnet())},
                    {.replicas = 2, .cuts = {3, 5, 7}, .schedule = "interleaved-1f1b"}});
  check_as_alone(what, {{0, 2, 4, 6}, {1, 3, 5, 7}});
}

TEST_CASE("Replicas with unequal numbers of micro-batches normalize those that there are") {
  auto what = synchronized_norms(images({12, 3, 2, 11}));  // for two of four nothing in one of them
  what.microbatches = 6;                                   // shares of 2, 1, 2 and 1
  check_ways(what, {{.replicas = 2},
                    {.replicas = 4},
                    {.replicas = 4, .cuts = {5}},
                    {.replicas = 4, .cuts = {5}, .schedule = "zb-h1"}});
  check_as_alone(what, {{0, 2, 3, 5}, {1, 4}});
}

TEST_CASE("A replica that dies is known within a second to one that needs it to normalize") {
  at::set_num_threads(1);
  auto what = synchronized_norms(images({16}));
  what.replicas = what.logical = 2;
  const auto in = std::make_shared<home>();
  company all(what, {c10::Device(c10::kCPU)}, nullptr, in);
  auto pipeline = all.compose(what);
  const auto step_once = [&] { return pipeline.train(what.batches.front(), 8, what.rate); };
  REQUIRE(step_once());
  const auto is_busy = [&] { return is_within_step(in->system, all.stages().front()); };
  auto step = std::async(std::launch::async, step_once);
  while (!is_busy()) std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  all.kill(1);
  // Replica 0 cannot end its step alone; it gives it up once it is told.
  while (is_busy() && std::chrono::steady_clock::now() - begin < 20s) std::this_thread::yield();
  CHECK(std::chrono::steady_clock::now() - begin < 1s);
  REQUIRE(step.wait_for(30s) == std::future_status::ready);
  CHECK_FALSE(step.get());
  CHECK_FALSE(step_once());
}  // and the work thread of replica 0 ends, though it may have waited
