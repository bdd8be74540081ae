// Batch norm that is synchronized over replicas: what PyTorch's batch norm makes of the
// micro-batches of one index in one process, and the same bits whatever the number of replicas.

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <caf/actor_system.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <future>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/messages/common.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "tests/parity/small_models.hpp"

namespace {

using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;
using namespace std::chrono_literals;

using tests::images;
using tests::resnet;
using tests::seed;

constexpr double rate = 0.05;

struct way {
  std::uint32_t replicas = 1;
  std::vector<std::size_t> cuts = {};
  std::string schedule = "1f1b";
  bool recomputes = false;
  bool shares_state = false;
  std::uint32_t microbatches = 8;
  std::uint32_t logical = 4;
};

/// Stages of all replicas in one process.
class company {
 public:
  explicit company(const way& how) : how_(how) {
    const auto layers = resnet().size();
    for (std::uint32_t replica = 0; replica < how.replicas; ++replica) {
      auto spawned = actors::local_stages::spawn(
          system_, resnet(), how.cuts,
          {.options = {.seed = seed, .recompute = std::vector<bool>(layers, how.recomputes)},
           .optimizer_options = {{"momentum", 0.9}}},
          optimizers::built_in(), {how.schedule});
      REQUIRE(spawned);
      all_.push_back(std::move(*spawned));
      for (const auto& each : all_.back().handles()) stages_.push_back(each);
    }
  }

  result<actors::pipeline> compose() {
    return actors::pipeline::compose(system_, stages_, how_.schedule,
                                     {.clip_norm = 0.5,
                                      .replicas = how_.replicas,
                                      .logical_replicas = how_.logical,
                                      .shares_state = how_.shares_state,
                                      .synced_norm = true});
  }
  void kill(std::size_t stage) { caf::anon_send_exit(stages_.at(stage), caf::exit_reason::kill); }
  /// A version can be taken between steps only.
  bool is_within_step(std::size_t stage) {
    bool within = false;
    caf::scoped_actor self(system_);
    self->request(stages_.at(stage), 20s, actors::take_version{0})
        .receive([](const actors::acknowledged&) {}, [&](const caf::error&) { within = true; });
    return within;
  }

 private:
  way how_;
  actors::system_config config_;
  caf::actor_system system_{config_};
  std::list<actors::local_stages> all_;  // by replica
  std::vector<actors::stage_actor> stages_;
};

struct trained {
  std::vector<double> losses;
  std::vector<engine::named_tensor> weights;
  engine::step_result dry;  // before the first step
};

trained train(const std::vector<engine::batch>& batches, const way& how) {
  company all(how);
  auto pipeline = all.compose();
  if (!pipeline) FAIL(pipeline.error().text);
  trained result;
  auto dry = pipeline->dry_run(batches.front(), how.microbatches);
  if (!dry) FAIL(dry.error().text);
  result.dry = std::move(*dry);
  for (const auto& batch : batches) {
    const auto outcome = pipeline->train(batch, how.microbatches, rate);
    if (!outcome) FAIL(outcome.error().text);
    result.losses.push_back(outcome->loss);
    const auto tested = pipeline->evaluate(batch, how.microbatches);
    REQUIRE(tested);
    result.losses.push_back(tested->loss);
  }
  auto weights = pipeline->read_weights();
  REQUIRE(weights);
  result.weights = std::move(*weights);
  return result;
}

/// By name: stages of several chunks have the model in another order.
void check_same(std::vector<engine::named_tensor> one, std::vector<engine::named_tensor> other) {
  REQUIRE(one.size() == other.size());
  for (auto* const list : {&one, &other}) std::ranges::sort(*list, {}, &engine::named_tensor::name);
  for (std::size_t i = 0; i < one.size(); ++i) {
    INFO(one[i].name);
    CHECK(one[i].name == other[i].name);
    CHECK(at::equal(one[i].tensor, other[i].tensor));
  }
}

void check_same(const trained& one, const trained& other) {
  CHECK(one.losses == other.losses);
  CHECK(one.dry.loss == other.dry.loss);
  check_same(one.dry.gradients, other.dry.gradients);
  check_same(one.dry.buffers, other.dry.buffers);
  check_same(one.weights, other.weights);
}

/// One process, in which PyTorch's batch norm sees these micro-batches of the batch at a time.
void check_close(const engine::batch& batch, std::uint32_t microbatches,
                 const std::vector<std::vector<std::size_t>>& groups, const trained& found) {
  const auto parts = engine::split_batch(batch, microbatches);
  REQUIRE(parts);
  std::vector<engine::batch> together;
  for (const auto& group : groups) {
    std::vector<at::Tensor> inputs, labels;
    for (const auto i : group) {
      inputs.push_back(parts->at(i).inputs);
      labels.push_back(parts->at(i).labels);
    }
    together.push_back({at::cat(inputs), at::cat(labels)});
  }
  const auto alone = engine::run_in_one_piece(resnet(), {.seed = seed}, 1, together);
  CHECK_THAT(found.dry.loss, WithinRel(alone.loss, 1e-5));
  tests::check_close(found.dry, alone, 1e-3);
}

}  // namespace

TEST_CASE("Synchronized batch norm is that of one process over all replicas' micro-batches") {
  at::set_num_threads(1);
  const auto batches = images({16, 7, 10});
  const auto one = train(batches, {});
  check_close(batches.front(), 8, {{0, 2, 4, 6}, {1, 3, 5, 7}}, one);
  for (const way& how :
       {way{.replicas = 2}, way{.replicas = 4}, way{.cuts = {5}},
        way{.replicas = 2, .cuts = {5}, .schedule = "zb-h1"},
        way{.replicas = 4, .cuts = {3, 6}, .schedule = "gpipe", .shares_state = true},
        way{.replicas = 2, .recomputes = true},
        way{.replicas = 2, .cuts = {3, 5, 7}, .schedule = "interleaved-1f1b"}}) {
    INFO(how.replicas << " replicas of " << how.cuts.size() + 1 << " slices, " << how.schedule);
    check_same(one, train(batches, how));
  }
}

TEST_CASE("Replicas with unequal numbers of micro-batches normalize those that there are") {
  at::set_num_threads(1);
  const auto batches = images({12, 3, 2, 11});  // two replicas of four have nothing in one of them
  const way uneven{.microbatches = 6};
  const auto one = train(batches, uneven);  // shares of 2, 1, 2 and 1
  check_close(batches.front(), 6, {{0, 2, 3, 5}, {1, 4}}, one);
  for (way how : {way{.replicas = 2}, way{.replicas = 4}, way{.replicas = 4, .cuts = {5}},
                  way{.replicas = 4, .cuts = {5}, .schedule = "zb-h1"}}) {
    how.microbatches = uneven.microbatches;
    INFO(how.replicas << " replicas of " << how.cuts.size() + 1 << " slices, " << how.schedule);
    check_same(one, train(batches, how));
  }
}

TEST_CASE("A replica that dies is known within a second to one that needs it to normalize") {
  at::set_num_threads(1);
  company all({.replicas = 2, .logical = 2});
  auto pipeline = all.compose();
  REQUIRE(pipeline);
  const auto batch = images({16}).front();
  REQUIRE(pipeline->train(batch, 8, rate));
  auto step = std::async(std::launch::async, [&] { return pipeline->train(batch, 8, rate); });
  while (!all.is_within_step(0)) std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  all.kill(1);
  // Replica 0 cannot end its step alone; it gives it up once it is told.
  while (all.is_within_step(0) && std::chrono::steady_clock::now() - begin < 20s)
    std::this_thread::yield();
  CHECK(std::chrono::steady_clock::now() - begin < 1s);
  REQUIRE(step.wait_for(30s) == std::future_status::ready);
  CHECK_FALSE(step.get());
  CHECK_FALSE(pipeline->train(batch, 8, rate));
}  // and the work thread of replica 0 ends, though it may have waited
