#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <caf/actor_control_block.hpp>
#include <caf/actor_system.hpp>
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

#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "apps/resnet_pipeline/resnet.hpp"
#include "apps/transformer_pipeline/gpt.hpp"
#include "engine/collective/nccl/maker.hpp"
#include "engine/model/model.hpp"
#include "tests/fake_device/fake_device.hpp"
#include "tests/fake_device/nccl_device.hpp"

/// Replicas on the devices of tests, which sum by the NCCL of tests.
namespace troupe::tests {

using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
namespace fake = fake_device;
using maker = std::shared_ptr<const engine::collective_maker>;

inline constexpr std::uint64_t seed = 5;
inline constexpr double rate = 0.05;
inline constexpr std::uint32_t microbatches = 4;

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

/// What is trained.
struct task {
  std::function<engine::model()> build;
  std::vector<engine::batch> batches;
  std::vector<std::size_t> cuts = {};
  std::string schedule = "1f1b";
  std::string optimizer = "sgd";
  optimizers::options options = {{"momentum", 0.9}};
  std::uint32_t replicas = 2;
  bool shares_state = false;
  double clip_norm = 0;
  bool fast = false;
  std::vector<std::vector<caf::strong_actor_ptr>> keepers = {};  // by stage
  std::uint64_t steps_before = 0;
};

inline engine::model resnet() {
  auto layers = apps::build_resnet("resnet18", 10, seed);
  REQUIRE(layers);
  return std::move(*layers);
}

inline engine::model decoder() {
  auto layers = apps::build_gpt(
      64, seed,
      {.layers = 2, .width = 32, .heads = 4, .context = 16, .tied = true, .dropout = 0.2});
  REQUIRE(layers);
  return std::move(*layers);
}

inline std::vector<engine::batch> images(std::initializer_list<std::int64_t> sizes) {
  std::vector<engine::batch> all;
  for (const auto size : sizes)
    all.push_back({at::randn({size, 3, 32, 32}), at::randint(0, 10, {size}, at::kLong)});
  return all;
}

inline std::vector<engine::batch> sentences(std::initializer_list<std::int64_t> sizes) {
  std::vector<engine::batch> all;
  for (const auto size : sizes)
    all.push_back(
        {at::randint(0, 64, {size, 16}, at::kLong), at::randint(0, 64, {size, 16}, at::kLong)});
  return all;
}

/// Where actors live.
struct home {
  actors::system_config config;
  caf::actor_system system{config};
};

/// Stages of all replicas in one process, which end with it.
class company {
 public:
  company(const task& what, const std::vector<c10::Device>& devices, const maker& collectives,
          std::shared_ptr<home> in = std::make_shared<home>())
      : home_(std::move(in)) {
    for (std::uint32_t replica = 0; replica < what.replicas; ++replica)
      spawn(what, devices, collectives);
  }
  ~company() {
    for (const auto& each : stages_) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  result<actors::pipeline> try_compose(const task& what) {
    return actors::pipeline::compose(home_->system, stages_, what.schedule,
                                     {.ties = actors::ties_between(what.build(), ranges_),
                                      .steps_before = what.steps_before,
                                      .clip_norm = what.clip_norm,
                                      .replicas = what.replicas,
                                      .logical_replicas = what.replicas,
                                      .shares_state = what.shares_state,
                                      .sums = {.fast = what.fast},
                                      .keepers = what.keepers});
  }
  actors::pipeline compose(const task& what) {
    auto made = try_compose(what);
    if (!made) FAIL(made.error().text);
    return std::move(*made);
  }
  void kill(std::size_t stage) { caf::anon_send_exit(stages_.at(stage), caf::exit_reason::kill); }

 private:
  void spawn(const task& what, const std::vector<c10::Device>& devices, const maker& collectives) {
    auto layers = what.build();
    ranges_ = engine::slices_between(what.cuts, layers.size());
    const auto layout =
        engine::layout_for({what.schedule}, static_cast<std::uint32_t>(ranges_.size()));
    REQUIRE(layout);
    const std::vector<bool> none(layers.size());
    for (std::uint32_t stage = 0; stage < layout->stages; ++stage) {
      actors::stage_blueprint blueprint{
          .name = "stage-" + std::to_string(stages_.size()),
          .options = {.device = devices.at(stages_.size() % devices.size()), .seed = seed},
          .optimizer = what.optimizer,
          .optimizer_options = what.options,
          .collectives = collectives};
      for (std::uint32_t chunk = 0; chunk < layout->chunks; ++chunk) {
        auto slice =
            actors::take_slice(layers, ranges_.at(layout->virtual_stage_of({stage, chunk})), none);
        REQUIRE(slice);
        blueprint.slices.push_back(std::move(*slice));
      }
      const auto made = actors::spawn_stage_with_optimizer(home_->system, std::move(blueprint),
                                                           optimizers::built_in());
      if (!made) FAIL(made.error().text);
      stages_.push_back(*made);
    }
  }

  std::shared_ptr<home> home_;
  std::vector<actors::stage_actor> stages_;
  std::vector<engine::layer_range> ranges_;
};

struct trained {
  std::string line;
  std::vector<double> losses;
  std::vector<engine::named_tensor> weights;
  std::vector<engine::named_tensor> state;
  engine::step_result dry;
};

inline trained train(const task& what, const std::vector<c10::Device>& devices,
                     const maker& collectives = nullptr) {
  company all(what, devices, collectives);
  auto pipeline = all.compose(what);
  trained result{.line = pipeline.sum_line(), .losses = {}, .weights = {}, .state = {}, .dry = {}};
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
  auto weights = pipeline.read_weights();
  REQUIRE(weights);
  result.weights = std::move(*weights);
  auto state = pipeline.read_state();
  REQUIRE(state);
  result.state = std::move(*state);
  std::ranges::sort(result.state, {}, &engine::named_tensor::name);
  return result;
}

inline void check_same(const std::vector<engine::named_tensor>& one,
                       const std::vector<engine::named_tensor>& other) {
  REQUIRE(one.size() == other.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    INFO(one[i].name);
    CHECK(one[i].name == other[i].name);
    CHECK(at::equal(one[i].tensor, other[i].tensor));
  }
}

inline void check_same(const trained& one, const trained& other) {
  CHECK(one.losses == other.losses);
  CHECK(one.dry.loss == other.dry.loss);
  check_same(one.dry.gradients, other.dry.gradients);
  check_same(one.dry.buffers, other.dry.buffers);
  check_same(one.weights, other.weights);
  check_same(one.state, other.state);
}

inline void check_nothing_found() {
  const auto found = fake::seen();
  for (const auto& each : found.races) UNSCOPED_INFO(each);
  CHECK(found.races.empty());
  for (const auto& each : found.host_reads) UNSCOPED_INFO(each);
  CHECK(found.host_reads.empty());
  CHECK(found.overruns == 0);
  CHECK(library().wrong_uses() == std::string());
}

struct prepared {
  prepared() {
    ::unsetenv("FAKE_NCCL_SCRIPT");
    fake::install();
    fake::reset();
    at::set_num_threads(1);
    at::globalContext().setSDPUseFlash(false);
  }
};

inline std::vector<c10::Device> cards(int count) {
  std::vector<c10::Device> all;
  for (int i = 0; i < count; ++i) all.push_back(fake::device(i));
  return all;
}

}  // namespace troupe::tests
