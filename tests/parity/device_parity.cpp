// Stages on the devices of tests train with the CPU's bits, and nothing that a GPU would do wrong
// without a word: no race between streams, no early read of the host, no wait for a device within a
// step.

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <caf/send.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "apps/resnet_pipeline/resnet.hpp"
#include "apps/transformer_pipeline/gpt.hpp"
#include "engine/model/model.hpp"
#include "engine/model/recompute.hpp"
#include "engine/verify/verification.hpp"
#include "optimizers/training/saved_state.hpp"
#include "tests/fake_device/fake_device.hpp"

namespace {

using namespace troupe;
namespace fake = tests::fake_device;

constexpr std::uint64_t seed = 5;
/// A batch norm of two numbers has gradients of any size: a larger rate may end in infinity.
constexpr double rate = 0.001;
constexpr std::uint32_t microbatches = 4;

using build_layers = std::function<engine::model()>;

/// What is trained, the same on the CPU and on devices.
struct task {
  build_layers build;
  std::vector<engine::batch> batches;
  std::vector<std::size_t> cuts = {};  // one a chunk of a stage, but the first
  std::string schedule = "1f1b";
  std::string optimizer = "sgd";
  optimizers::options options = {{"momentum", 0.9}};
  actors::update_rules rules = {};
  std::vector<std::string> recompute = {};
  std::uint32_t replicas = 1;
  bool shares_state = false;
  double clip_norm = 0;
  double loss_scale = 1;
};

struct trained {
  std::vector<double> losses;
  std::vector<engine::named_tensor> weights;
  std::vector<engine::named_tensor> state;  // by name
  engine::step_result dry;                  // before the first step
};

engine::model resnet() {
  auto layers = apps::build_resnet("resnet18", 10, seed);
  REQUIRE(layers);
  return std::move(*layers);
}

engine::model decoder() {
  auto layers = apps::build_gpt(
      64, seed,
      {.layers = 2, .width = 32, .heads = 4, .context = 16, .tied = true, .dropout = 0.2});
  REQUIRE(layers);
  return std::move(*layers);
}

std::vector<engine::batch> images(std::initializer_list<std::int64_t> sizes) {
  std::vector<engine::batch> all;
  for (const auto size : sizes)
    all.push_back({at::randn({size, 3, 32, 32}), at::randint(0, 10, {size}, at::kLong)});
  return all;
}

std::vector<engine::batch> sentences(std::initializer_list<std::int64_t> sizes) {
  std::vector<engine::batch> all;
  for (const auto size : sizes)
    all.push_back(
        {at::randint(0, 64, {size, 16}, at::kLong), at::randint(0, 64, {size, 16}, at::kLong)});
  return all;
}

/// Stages of one process, which end with it.
class company {
 public:
  company(const task& what, const std::vector<c10::Device>& devices) : system_(config_) {
    for (std::uint32_t replica = 0; replica < what.replicas; ++replica) spawn(what, devices);
  }
  ~company() {
    for (const auto& each : stages_) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  actors::pipeline compose(const task& what) {
    auto made = actors::pipeline::compose(system_, stages_, what.schedule,
                                          {.ties = actors::ties_between(what.build(), ranges_),
                                           .skip_bad_steps = true,
                                           .loss_scale = what.loss_scale,
                                           .clip_norm = what.clip_norm,
                                           .replicas = what.replicas,
                                           .logical_replicas = what.replicas,
                                           .shares_state = what.shares_state});
    if (!made) FAIL(made.error().text);
    return std::move(*made);
  }

 private:
  void spawn(const task& what, const std::vector<c10::Device>& devices) {
    auto layers = what.build();
    ranges_ = engine::slices_between(what.cuts, layers.size());
    const auto again = engine::recomputed_layers(engine::layer_names(layers), what.recompute);
    REQUIRE(again);
    const auto layout =
        engine::layout_for({what.schedule}, static_cast<std::uint32_t>(ranges_.size()));
    REQUIRE(layout);
    for (std::uint32_t stage = 0; stage < layout->stages; ++stage) {
      actors::stage_blueprint blueprint{
          .name = "stage-" + std::to_string(stages_.size()),
          .options = {.device = devices.at(stages_.size() % devices.size()), .seed = seed},
          .optimizer = what.optimizer,
          .optimizer_options = what.options,
          .rules = what.rules};
      for (std::uint32_t chunk = 0; chunk < layout->chunks; ++chunk) {
        auto slice = actors::take_slice(
            layers, ranges_.at(layout->virtual_stage_of({stage, chunk})), *again);
        REQUIRE(slice);
        blueprint.slices.push_back(std::move(*slice));
      }
      const auto made =
          actors::spawn_stage_with_optimizer(system_, std::move(blueprint), optimizers::built_in());
      if (!made) FAIL(made.error().text);
      stages_.push_back(*made);
    }
  }

  actors::system_config config_;
  caf::actor_system system_;
  std::vector<actors::stage_actor> stages_;
  std::vector<engine::layer_range> ranges_;
};

void sort_by_name(std::vector<engine::named_tensor>& list) {
  std::ranges::sort(list, {}, &engine::named_tensor::name);
}

trained train(const task& what, const std::vector<c10::Device>& devices) {
  company all(what, devices);
  auto pipeline = all.compose(what);
  trained result;
  auto dry = pipeline.dry_run(what.batches.front(), microbatches, 8);
  if (!dry) FAIL(dry.error().text);
  result.dry = std::move(*dry);
  for (const auto& batch : what.batches) {
    const auto before = fake::seen().synchronisations;
    const auto outcome = pipeline.train(batch, microbatches, rate);
    if (!outcome) FAIL(outcome.error().text);
    const auto after = fake::seen().synchronisations;
    for (auto i = before.size(); i < after.size(); ++i) UNSCOPED_INFO(after[i]);
    CHECK(after.size() == before.size());
    result.losses.push_back(outcome->loss);
    const auto tested = pipeline.evaluate(batch, microbatches);
    if (!tested) FAIL(tested.error().text);
    result.losses.push_back(tested->loss);
    result.losses.push_back(static_cast<double>(tested->correct));
  }
  auto weights = pipeline.read_weights();
  REQUIRE(weights);
  result.weights = std::move(*weights);
  auto state = pipeline.read_state();
  REQUIRE(state);
  result.state = std::move(*state);
  sort_by_name(result.state);
  return result;
}

void check_same(const std::vector<engine::named_tensor>& one,
                const std::vector<engine::named_tensor>& other) {
  REQUIRE(one.size() == other.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    INFO(one[i].name);
    CHECK(one[i].name == other[i].name);
    CHECK(other[i].tensor.is_cpu());
    CHECK(at::equal(one[i].tensor, other[i].tensor));
  }
}

void check_nothing_found() {
  const auto found = fake::seen();
  for (const auto& each : found.races) UNSCOPED_INFO(each);
  CHECK(found.races.empty());
  for (const auto& each : found.host_reads) UNSCOPED_INFO(each);
  CHECK(found.host_reads.empty());
  CHECK(found.overruns == 0);
}

/// Sets what all cases need; attention has one form that both devices have.
struct prepared {
  prepared() {
    fake::install();
    fake::reset();
    at::set_num_threads(1);
    at::globalContext().setSDPUseFlash(false);
  }
};

void check_parity(const task& what, const std::vector<std::vector<c10::Device>>& places) {
  const auto expected = train(what, {c10::Device(c10::kCPU)});
  for (const double each : expected.losses) REQUIRE(std::isfinite(each));
  for (const auto& devices : places) {
    INFO(what.schedule << ", " << what.cuts.size() + 1 << " slices on " << devices.size()
                       << " devices, first " << devices.front().str());
    fake::reset();
    const auto found = train(what, devices);
    CHECK(fake::seen().operators > 0);
    check_nothing_found();
    CHECK(found.losses == expected.losses);
    CHECK(found.dry.loss == expected.dry.loss);
    check_same(expected.dry.gradients, found.dry.gradients);
    check_same(expected.dry.buffers, found.dry.buffers);
    check_same(expected.weights, found.weights);
    check_same(expected.state, found.state);
  }
}

c10::Device on(int index) {
  return fake::device(index);
}

}  // namespace

TEST_CASE("Stages on devices train images to the CPU's bits under every schedule") {
  const prepared ready;
  const std::vector<c10::Device> one{on(0)}, two{on(0), on(1)}, mixed{on(0), c10::kCPU};
  check_parity({.build = resnet, .batches = images({9, 8})}, {one});
  check_parity({.build = resnet, .batches = images({9, 8}), .cuts = {5}}, {one, two, mixed});
  check_parity({.build = resnet, .batches = images({8}), .cuts = {3, 7, 11}, .schedule = "zb-h1"},
               {one, two});
  check_parity({.build = resnet, .batches = images({8}), .cuts = {3, 7, 11}, .schedule = "zb-v"},
               {one, two});
  check_parity({.build = resnet,
                .batches = images({8}),
                .cuts = {3, 7, 11},
                .schedule = "interleaved-1f1b",
                .recompute = {"layer2", "layer3"}},
               {two});
}

TEST_CASE("Stages on devices train tied weights with dropout, clipping and a loss scale") {
  const prepared ready;
  const std::vector<c10::Device> one{on(0)}, two{on(0), on(1)}, mixed{c10::kCPU, on(2)};
  check_parity({.build = decoder,
                .batches = sentences({8, 7, 8}),
                .cuts = {2},
                .schedule = "zb-h1",
                .optimizer = "adamw",
                .options = {},
                .rules = {.clip_value = 0.02, .accumulate = 2},
                .clip_norm = 0.1,
                .loss_scale = 64},
               {one, two, mixed});
}

TEST_CASE("Replicas on devices train to the CPU's bits, with shared state too") {
  const prepared ready;
  const std::vector<c10::Device> one{on(0)}, four{on(0), on(1), on(2), on(3)};
  for (const bool shares_state : {false, true}) {
    check_parity({.build = resnet,
                  .batches = images({9, 8}),
                  .cuts = {6},
                  .replicas = 2,
                  .shares_state = shares_state},
                 {one, four});
    check_parity({.build = decoder,
                  .batches = sentences({8, 7}),
                  .cuts = {2},
                  .optimizer = "adamw",
                  .options = {},
                  .replicas = 2,
                  .shares_state = shares_state,
                  .clip_norm = 0.1},
                 {one, four});
  }
}

TEST_CASE("What a run saves from devices, devices and the CPU load and go on from") {
  const prepared ready;
  const task what{
      .build = resnet, .batches = images({8, 8}), .cuts = {6}, .optimizer = "adam", .options = {}};
  const auto first = train(what, {on(0), on(1)});
  const auto go_on = [&](const std::vector<c10::Device>& devices) {
    company all(what, devices);
    auto pipeline = all.compose(what);
    for (std::uint32_t stage = 0; stage < 2; ++stage) {
      std::vector<engine::named_tensor> weights, state;
      const auto own = engine::layer_names(what.build());
      const auto layers = what.build();
      std::size_t begin = stage == 0 ? 0 : 6, end = stage == 0 ? 6 : layers.size();
      for (const auto& each : first.weights)
        for (auto i = begin; i < end; ++i)
          if (each.name.starts_with(own[i] + "."))
            weights.push_back({each.name, each.tensor.clone()});
      for (const auto& each : first.state)
        for (const auto& weight : weights)
          if (optimizers::parameter_of(each.name) == weight.name)
            state.push_back({each.name, each.tensor.clone()});  // the optimizer writes them
      if (const auto loaded = pipeline.load_weights(stage, weights); !loaded)
        FAIL(loaded.error().text);
      if (const auto loaded = pipeline.load_state(stage, state); !loaded) FAIL(loaded.error().text);
    }
    const auto outcome = pipeline.train(what.batches.front(), microbatches, rate);
    if (!outcome) FAIL(outcome.error().text);
    auto weights = pipeline.read_weights();
    REQUIRE(weights);
    return std::pair(outcome->loss, std::move(*weights));
  };
  const auto here = go_on({c10::Device(c10::kCPU)});
  fake::reset();
  const auto there = go_on({on(1), on(2)});
  check_nothing_found();
  CHECK(here.first == there.first);
  check_same(here.second, there.second);
}

TEST_CASE("A step on devices passes verification against one process, every bit") {
  const prepared ready;
  const auto batches = images({8});
  const task what{.build = resnet, .batches = batches, .cuts = {6}, .schedule = "zb-h1"};
  const auto found = train(what, {on(0), on(1)});
  const auto parts = engine::split_batch(batches.front(), microbatches);
  REQUIRE(parts);
  const auto alone = engine::run_in_one_piece(what.build(), {.seed = seed}, 1, *parts, 8);
  const auto outcome = engine::compare(found.dry, alone, 0);
  for (const auto& line : engine::to_lines(outcome)) UNSCOPED_INFO(line);
  CHECK(outcome.passed());
}

TEST_CASE("A device that is full is told of with stage, action and bytes, and what to do") {
  const prepared ready;
  const task what{.build = resnet, .batches = images({64}), .cuts = {6}};
  company all(what, {on(3)});
  auto pipeline = all.compose(what);
  fake::limit_memory(3, fake::bytes_in_use(3) + (1U << 20));
  const auto outcome = pipeline.train(what.batches.front(), microbatches, rate);
  fake::limit_memory(3, 0);
  REQUIRE_FALSE(outcome);
  CHECK_THAT(outcome.error().text,
             Catch::Matchers::Matches(
                 "stage-0: F[0-9]+.* failed: fake:3 out of memory\\. Tried to allocate [0-9]+ "
                 "bytes, of [0-9]+ bytes are [0-9]+ free\\. Use a smaller micro-batch, or "
                 "recompute activations \\(pipeline\\.recompute\\)"));
}
