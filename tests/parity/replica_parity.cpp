// Replicas of a pipeline in one process: the same bits whatever their number, and within rounding
// what plain autograd computes of the whole batch.

#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "engine/model/model.hpp"
#include "tests/parity/small_models.hpp"

namespace {

using namespace troupe;
using Catch::Matchers::WithinRel;

using tests::check_same;
using tests::decoder;
using tests::resnet;
using tests::seed;

constexpr double rate = 0.05;

using build_layers = std::function<engine::model()>;

struct way {
  std::uint32_t replicas = 1;
  std::uint32_t logical = 4;
  std::vector<std::size_t> cuts = {};
  std::string schedule = "1f1b";
  bool shares_state = false;
};

struct trained {
  std::vector<double> losses;
  std::vector<engine::named_tensor> weights;
  std::vector<engine::named_tensor> state;  // by name
  std::vector<std::uint64_t> state_bytes;   // of each stage's optimizer
  engine::step_result dry;                  // before the first step
};

std::uint64_t state_bytes_of(caf::actor_system& system, const actors::stage_actor& stage) {
  caf::scoped_actor self(system);
  std::uint64_t bytes = 0;
  self->request(stage, std::chrono::seconds(20), actors::read_state{})
      .receive(
          [&](const actors::kept_state& kept) {
            REQUIRE(kept.piece.last);
            for (const auto& each : kept.piece.parts) bytes += each.tensor.nbytes();
          },
          [](const caf::error& why) { FAIL(actors::from_caf(why).text); });
  return bytes;
}

trained train(const build_layers& build, const std::vector<engine::batch>& batches,
              const way& how) {
  actors::system_config config;
  caf::actor_system system(config);
  std::list<actors::local_stages> all;  // by replica
  std::vector<actors::stage_actor> stages;
  std::vector<engine::layer_range> ranges;
  for (std::uint32_t replica = 0; replica < how.replicas; ++replica) {
    auto layers = build();
    ranges = engine::slices_between(how.cuts, layers.size());
    auto spawned = actors::local_stages::spawn(
        system, std::move(layers), how.cuts,
        {.options = {.seed = seed}, .optimizer_options = {{"momentum", 0.9}}},
        optimizers::built_in(), {how.schedule});
    REQUIRE(spawned);
    all.push_back(std::move(*spawned));
    for (const auto& each : all.back().handles()) stages.push_back(each);
  }
  auto pipeline = actors::pipeline::compose(system, stages, how.schedule,
                                            {.ties = actors::ties_between(build(), ranges),
                                             .clip_norm = 0.5,
                                             .replicas = how.replicas,
                                             .logical_replicas = how.logical,
                                             .shares_state = how.shares_state});
  if (!pipeline) FAIL(pipeline.error().text);
  trained result;
  auto dry = pipeline->dry_run(batches.front(), 5);
  if (!dry) FAIL(dry.error().text);
  result.dry = std::move(*dry);
  for (const auto& batch : batches) {
    const auto outcome = pipeline->train(batch, 5, rate);
    if (!outcome) FAIL(outcome.error().text);
    result.losses.push_back(outcome->loss);
    const auto tested = pipeline->evaluate(batch, 5);
    REQUIRE(tested);
    result.losses.push_back(tested->loss);
    result.losses.push_back(static_cast<double>(tested->correct));
  }
  auto weights = pipeline->read_weights();
  REQUIRE(weights);
  result.weights = std::move(*weights);
  auto state = pipeline->read_state();
  REQUIRE(state);
  result.state = std::move(*state);
  std::ranges::sort(result.state, {}, &engine::named_tensor::name);
  for (const auto& stage : stages) result.state_bytes.push_back(state_bytes_of(system, stage));
  return result;
}

/// The whole batch in one process, in as many micro-batches.
void check_close(const build_layers& build, const engine::batch& batch, const trained& found) {
  const auto layers = build();
  const auto parts = engine::split_batch(batch, 5);
  REQUIRE(parts);
  const auto alone = engine::run_in_one_piece(layers, {.seed = seed}, 1, *parts);
  CHECK_THAT(found.dry.loss, WithinRel(alone.loss, 1e-6));
  tests::check_close(found.dry, alone, 1e-4);
}

void check_all(const build_layers& build, const std::vector<engine::batch>& batches,
               const std::vector<way>& ways) {
  at::set_num_threads(1);
  const auto one = train(build, batches, {});
  check_close(build, batches.front(), one);
  for (const auto& how : ways) {
    INFO(how.replicas << " replicas of " << how.cuts.size() + 1 << " slices, " << how.schedule);
    const auto other = train(build, batches, how);
    CHECK(one.losses == other.losses);
    check_same(one.dry.gradients, other.dry.gradients);
    check_same(one.dry.buffers, other.dry.buffers);
    check_same(one.weights, other.weights);
    check_same(one.state, other.state);
  }
}

}  // namespace

TEST_CASE("Any number of replicas of four logical ones trains images to the same bits") {
  std::vector<engine::batch> batches;
  for (const std::int64_t size : {7, 10, 3, 2})  // two replicas of four have nothing in the last
    batches.push_back({at::randn({size, 3, 64, 64}), at::randint(0, 10, {size}, at::kLong)});
  check_all(resnet, batches,
            {{.replicas = 2}, {.replicas = 4}, {.replicas = 2, .cuts = {5}, .schedule = "zb-h1"}});
}

TEST_CASE("Any number of replicas trains tied weights with dropout to the same bits") {
  check_all(decoder, tests::sentences({7, 12, 1}),
            {{.cuts = {2}},
             {.replicas = 2, .cuts = {2}},
             {.replicas = 4, .cuts = {1, 3}, .schedule = "gpipe"}});
}

TEST_CASE("Replicas that share out the optimizer's state keep the bits, and each an even share") {
  const auto images = tests::images({10, 10});
  check_all(resnet, images,
            {{.replicas = 2, .shares_state = true},
             {.replicas = 4, .shares_state = true},
             {.replicas = 2, .cuts = {5}, .schedule = "zb-h1", .shares_state = true}});
  const auto whole = train(resnet, images, {}).state_bytes.front();
  // Whole parameters of this model cannot be shared out to four more evenly than within 5.5%.
  for (const auto& [replicas, uneven] : {std::pair{2U, 0.01}, std::pair{4U, 0.06}}) {
    const auto shared = train(resnet, images, {.replicas = replicas, .shares_state = true});
    REQUIRE(shared.state_bytes.size() == replicas);
    CHECK(std::reduce(shared.state_bytes.begin(), shared.state_bytes.end()) == whole);
    const auto share = static_cast<double>(whole) / replicas;
    for (const auto bytes : shared.state_bytes)
      CHECK_THAT(static_cast<double>(bytes), WithinRel(share, uneven));
  }
  check_all(decoder, tests::sentences({7, 12, 1}),
            {{.replicas = 2, .shares_state = true},
             {.replicas = 2, .cuts = {2}, .shares_state = true},
             {.replicas = 4, .cuts = {1, 3}, .schedule = "gpipe", .shares_state = true}});
}

TEST_CASE("Stages that replicas do not share evenly are refused") {
  actors::system_config config;
  caf::actor_system system(config);
  auto spawned = actors::local_stages::spawn(system, decoder(), {2}, {}, optimizers::built_in());
  REQUIRE(spawned);
  for (const auto& [replicas, logical] : {std::pair(3U, 3U), std::pair(2U, 3U), std::pair(2U, 6U)})
    CHECK_FALSE(actors::pipeline::compose(system, spawned->handles(), "1f1b",
                                          {.replicas = replicas, .logical_replicas = logical}));
}
