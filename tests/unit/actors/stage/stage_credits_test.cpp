// Credits between real actors: a receiver that does not use what it gets holds its senders up, and
// only them. And stages of several chunks, and of layers that keep what they should not.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/flow.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/messages/stage.hpp"
#include "actors/pipeline/data/feed.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "engine/model/blocks.hpp"
#include "engine/schedule/generators.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/actors/stage/idle_stage.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using engine::edge;

constexpr std::uint32_t credits = 2;
constexpr std::uint32_t microbatches = 10;

using tests::idle_stage;
using tests::inbox;
using tests::received;

actors::stage_actor first_stage(caf::actor_system& system) {
  const auto random = at::detail::createCPUGenerator(1);
  actors::stage_blueprint parts{.name = "stage-0"};
  actors::model_slice slice{.is_last = false};
  slice.layers.push_back(std::make_unique<engine::linear>("one", 4, 4, random));
  parts.slices.push_back(std::move(slice));
  auto stage = actors::spawn_stage_with_optimizer(system, std::move(parts), optimizers::built_in());
  REQUIRE(stage);
  return *stage;
}

/// A layer that keeps what it made for a micro-batch.
class hoarder : public engine::layer {
 public:
  hoarder() : layer("hoarder") {}
  at::Tensor forward(const at::Tensor& input, bool /*training*/) override {
    kept_ = input.mul(2);
    return kept_.add(1);
  }
  [[nodiscard]] double macs(std::vector<std::int64_t>& /*sample*/) const override { return 0; }

 private:
  at::Tensor kept_;
};

struct slow_pipeline {
  slow_pipeline() {
    pipeline.emplace(actors::pipeline::compose(system, {first, last}, "gpipe", credits).value());
    wiring = got->connections.next();
    const auto step = pipeline->next_step();
    const engine::batch batch{at::randn({microbatches, 4}), at::zeros({microbatches}, at::kLong)};
    REQUIRE(actors::feed(batch, step, microbatches, pipeline->feeders()) == microbatches);
    REQUIRE(pipeline->begin(step, {engine::step_kind::training, microbatches, microbatches, 0.1}));
  }
  ~slow_pipeline() {
    pipeline.reset();
    for (const auto& stage : {first, last})
      caf::anon_send_exit(stage, caf::exit_reason::user_shutdown);
  }

  /// Returns when stage 0 has done all that it was told before.
  void settle() { REQUIRE(pipeline->read_weights()); }

  void use(const actors::activation& what) {
    caf::anon_send(caf::actor_cast<actors::stage_actor>(wiring.before.front().stage),
                   actors::credit{edge::input, what.key});
  }
  void use(const actors::target& what) {
    caf::anon_send(caf::actor_cast<actors::feeder_actor>(wiring.feeder),
                   actors::credit{edge::target, what.key});
  }

  actors::system_config config;
  caf::actor_system system{config};
  std::shared_ptr<received> got = std::make_shared<received>();
  actors::stage_actor first = first_stage(system);
  actors::stage_actor last = system.spawn(idle_stage, got);
  std::optional<actors::pipeline> pipeline;
  actors::connect_stage wiring;
};

/// Why a stage refuses a message; empty: it does not.
template <class Answer, class Message>
std::string refusal(caf::scoped_actor& self, const actors::stage_actor& stage,
                    const Message& message) {
  std::string text;
  self->request(stage, 10s, message)
      .receive([](const Answer&) {},
               [&](const caf::error& why) { text = actors::from_caf(why).text; });
  return text;
}

}  // namespace

TEST_CASE("A slow last stage bounds what the first sends ahead of it") {
  slow_pipeline slow;
  std::deque<actors::activation> unused;
  for (std::uint32_t i = 0; i < credits; ++i) unused.push_back(slow.got->activations.next());
  slow.settle();
  CHECK(slow.got->activations.empty());
  for (std::uint32_t i = credits; i < microbatches; ++i) {
    slow.use(unused.front());
    unused.pop_front();
    unused.push_back(slow.got->activations.next());
    CHECK(unused.back().key.microbatch == microbatch_id{i});
    slow.settle();
    CHECK(slow.got->activations.empty());
  }
}

TEST_CASE("An edge that is full does not hold up another") {
  slow_pipeline slow;
  for (std::uint32_t i = 0; i < microbatches; ++i) {
    const auto labels = slow.got->targets.next();
    CHECK(labels.key.microbatch == microbatch_id{i});
    slow.use(labels);
  }
  for (std::uint32_t i = 0; i < credits; ++i)
    CHECK(slow.got->activations.next().key.microbatch == microbatch_id{i});
  slow.settle();
  CHECK(slow.got->activations.empty());
}

TEST_CASE("A pipeline announces each plan once, and every run names the one it follows") {
  actors::system_config config;
  caf::actor_system system(config);
  const auto got = std::make_shared<received>();
  got->answers = true;
  const auto stage = system.spawn(idle_stage, got);
  auto pipeline = actors::pipeline::compose(system, {stage}, "1f1b");
  REQUIRE(pipeline);
  using engine::step_kind;
  const auto run = [&](step_kind kind, std::uint32_t count) {
    REQUIRE(pipeline->begin(pipeline->next_step(), {kind, count, count, 0.1}));
    REQUIRE(pipeline->finish());
    const auto order = got->runs.next();
    CHECK(order.kind == kind);
    return order.plan;
  };
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int step = 0; step < 20; ++step) CHECK(run(step_kind::training, 4) == 0);
    CHECK(run(step_kind::training, 3) == 1);
    for (int step = 0; step < 5; ++step) CHECK(run(step_kind::evaluation, 4) == 2);
  }
  for (const auto& [kind, count] : {std::pair(step_kind::training, 4U),
                                    {step_kind::training, 3U},
                                    {step_kind::evaluation, 4U}}) {
    const auto told = got->plans.next();
    CHECK(told.kind == kind);
    CHECK(told.microbatches == count);
    CHECK(told.steps.actions.size() == (kind == step_kind::training ? 2 : 1) * count);
  }
  CHECK(got->plans.empty());
  caf::anon_send_exit(stage, caf::exit_reason::user_shutdown);
}

TEST_CASE("A stage refuses plans that are wrong, and runs of plans that it was not told") {
  slow_pipeline slow;
  caf::scoped_actor self(slow.system);
  const actors::announce_plan good{.number = 5,
                                   .kind = engine::step_kind::training,
                                   .microbatches = 2,
                                   .chunks = 1,
                                   .steps = engine::gpipe(1, 2).stages.front()};
  const auto changed = [&](auto change) {
    auto message = good;
    change(message);
    return refusal<actors::acknowledged>(self, slow.first, message);
  };
  CHECK(changed([](auto& told) { told.number = 8; }) == "stage-0: plan 8 is out of range: below 8");
  CHECK(changed([](auto& told) { told.kind = engine::step_kind{2}; }) ==
        "stage-0: a plan for no kind of step");
  CHECK(changed([](auto& told) { told.chunks = 2; }) ==
        "stage-0: a plan for 2 chunks, but the stage has 1");
  CHECK(changed([](auto& told) { told.microbatches = 3; }) ==
        "stage-0: its plan is wrong: stage 0: F2 is missing");
  CHECK(changed([](auto& told) { told.steps.memory_cap = 1; }) ==
        "stage-0: its plan is wrong: stage 0: F1 would hold 2 activations, over the memory cap of "
        "1");
  actors::run_stage order{.step = {epoch_id{0}, step_id{99}}, .plan = 5, .batch_size = 2};
  CHECK(refusal<actors::stage_done>(self, slow.first, order) ==
        "stage-0: a run of plan 5, which was not announced to it");
  CHECK(refusal<actors::acknowledged>(self, slow.first, good).empty());
  order.kind = engine::step_kind::evaluation;
  CHECK(refusal<actors::stage_done>(self, slow.first, order) ==
        "stage-0: plan 5 is of another kind of step than the run that names it");
}

TEST_CASE("A pipeline refuses credits out of range") {
  actors::system_config config;
  caf::actor_system system(config);
  const auto stage = first_stage(system);
  for (const std::uint32_t wrong : {0U, engine::max_credits + 1}) {
    const auto refused = error_of(actors::pipeline::compose(system, {stage}, "gpipe", wrong));
    CHECK(refused.code == errc::bad_config);
    CHECK(refused.text == "credits = " + std::to_string(wrong) + " is out of range: 1 to 16384");
  }
  caf::anon_send_exit(stage, caf::exit_reason::user_shutdown);
}

TEST_CASE("Slices on stages of several chunks train as one stage does") {
  actors::system_config config;
  caf::actor_system system(config);
  const auto losses = [&](const std::vector<std::size_t>& cuts, const char* schedule) {
    const auto random = at::detail::createCPUGenerator(1);
    engine::model layers;
    for (const auto* name : {"one", "two", "three", "four"})
      layers.push_back(std::make_unique<engine::linear>(name, 4, 4, random));
    const auto stages = actors::local_stages::spawn(system, std::move(layers), cuts, {},
                                                    optimizers::built_in(), {schedule});
    REQUIRE(stages);
    auto pipeline = actors::pipeline::compose(system, stages->handles(), schedule);
    REQUIRE(pipeline);
    std::vector<double> all;
    for (int step = 0; step < 3; ++step) {
      const auto batch = at::randn({6, 4}, random);
      all.push_back(pipeline->train({batch, at::zeros({6}, at::kLong)}, 3, 0.1).value().loss);
    }
    const auto evaluated = pipeline->evaluate({at::zeros({6, 4}), at::zeros({6}, at::kLong)}, 3);
    REQUIRE(evaluated);
    all.push_back(evaluated->loss);
    return all;
  };
  const auto alone = losses({}, "1f1b");
  CHECK(losses({1, 2, 3}, "zb-v") == alone);
  CHECK(losses({1, 2, 3}, "interleaved-1f1b") == alone);
  CHECK(losses({2}, "zb-v") == alone);
  const auto uneven =
      actors::local_stages::spawn(system, {}, {}, {}, optimizers::built_in(), {"zb-v"});
  REQUIRE_FALSE(uneven);
}

TEST_CASE("A step whose contexts do not come back to zero fails, and says by how much") {
  actors::system_config config;
  caf::actor_system system(config);
  const auto random = at::detail::createCPUGenerator(1);
  engine::model layers;
  layers.push_back(std::make_unique<engine::linear>("one", 4, 4, random));
  layers.push_back(std::make_unique<hoarder>());
  const auto stages =
      actors::local_stages::spawn(system, std::move(layers), {}, {}, optimizers::built_in());
  REQUIRE(stages);
  auto pipeline = actors::pipeline::compose(system, stages->handles(), "1f1b");
  REQUIRE(pipeline);
  const auto failed =
      pipeline->train({at::randn({6, 4}, random), at::zeros({6}, at::kLong)}, 3, 0.1);
  REQUIRE_FALSE(failed);
  CHECK(failed.error().text ==
        "stage-0: the contexts of step 1 of epoch 0 still hold 32 bytes at its end");
}
