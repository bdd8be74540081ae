// Two replicas of a stage in two processes of this machine: what they send each other for the sums
// of gradients stays where it was made, nobody writes it there, and the bits are those of one
// process.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <unistd.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/messages/common.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/pipeline/host_actor.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "engine/model/blocks.hpp"
#include "tests/forked_member.hpp"
#include "tests/unit/hold_up.hpp"

namespace {

using namespace troupe;
using namespace troupe::actors;
using messages::link_transport;
using tests::child;
using tests::member;
using tests::patience;

constexpr std::int64_t classes = 5;
constexpr std::int64_t width = 256;
constexpr std::uint64_t steps = 3;
/// Of the gradients that are worth a loan, a step.
constexpr std::uint64_t large_bytes = 2 * width * width * sizeof(float);

/// What is trained, and how.
struct run_kind {
  std::string optimizer = "adamw";
  std::uint32_t microbatches = 4;
  std::uint32_t logical = 2;
  bool shares_state = false;
  bool idle_cores = false;
  double loss_scale = 1;
  double clip_norm = 0;
  update_rules rules = {};
};

struct trained {
  std::vector<double> losses;
  std::vector<engine::named_tensor> weights;
};

result<engine::model_blueprint> small_model(const engine::model_order& order) {
  engine::model_blueprint made;
  made.add<engine::linear>("one", 8, width);
  made.add<engine::relu>("two");
  made.add<engine::linear>("three", width, width);
  made.add<engine::relu>("four");
  made.add<engine::linear>("five", width, width);
  made.add<engine::relu>("six");
  made.add<engine::linear>("seven", width, order.classes);
  return made;
}

host_parts parts_of(const member& here) {
  return {.models = {{"small", small_model}},
          .optimizers = optimizers::built_in(),
          .on_shut_down = {},
          .losses = engine::built_in_losses(),
          .memory = here.node->memory()};
}

/// All of the model is in one stage.
build_stage order_of(const run_kind& kind, std::uint32_t replica) {
  return {.stage = {replica},
          .model = "small",
          .classes = classes,
          .seed = 3,
          .slices = {{0, 7}},
          .loss = "cross-entropy",
          .idle_cores = kind.idle_cores,
          .optimizer = kind.optimizer,
          .optimizer_options = {},
          .rules = kind.rules};
}

engine::batch batch_of(std::uint64_t step) {
  const auto random = at::detail::createCPUGenerator(step);
  return {at::randn({12, 8}, random), at::randint(classes, {12}, random, at::kLong)};
}

pipeline compose(caf::actor_system& system, const std::vector<stage_actor>& stages,
                 const run_kind& kind) {
  auto made = pipeline::compose(system, stages, "1f1b",
                                {.loss_scale = kind.loss_scale,
                                 .clip_norm = kind.clip_norm,
                                 .replicas = static_cast<std::uint32_t>(stages.size()),
                                 .logical_replicas = kind.logical,
                                 .shares_state = kind.shares_state && stages.size() > 1,
                                 .accumulate = kind.rules.accumulate});
  if (!made) FAIL(made.error().text);
  return std::move(*made);
}

trained train(caf::actor_system& system, const std::vector<stage_actor>& stages,
              const run_kind& kind) {
  auto made = compose(system, stages, kind);
  trained out;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    const auto done = made.train(batch_of(step), kind.microbatches, 0.01);
    if (!done) FAIL(done.error().text);
    out.losses.push_back(done->loss);
  }
  auto weights = made.read_weights();
  if (!weights) FAIL(weights.error().text);
  out.weights = std::move(*weights);
  return out;
}

/// A host of stages in a process of its own, until it is killed.
void serve(link_transport transport, int out) {
  member here("far", transport);
  here.node->publish(
      "host", caf::actor_cast<caf::strong_actor_ptr>(spawn_host(here.system, parts_of(here))));
  child::say(out, here.node->address());
  while (true) pause();
}

/// One replica is built here, the other one there.
class both_processes {
 public:
  explicit both_processes(link_transport transport)
      : there_([transport](int, int out) { serve(transport, out); }),
        here_("near", transport),
        host_(caf::actor_cast<host_actor>(here_.find(there_.hear(), "host"))) {}
  both_processes(const both_processes&) = delete;
  both_processes& operator=(const both_processes&) = delete;
  ~both_processes() { drop(); }

  /// Trains the same on both, and in one process alone.
  void check(const run_kind& kind) {
    const auto expected = train(here_.system, {build_here(kind, 0)}, kind);
    drop();
    const auto before = lent_so_far();
    const auto got = train(here_.system, build_both(kind), kind);
    lent_ = lent_so_far() - before;
    drop();
    CHECK(got.losses == expected.losses);
    REQUIRE(got.weights.size() == expected.weights.size());
    for (std::size_t i = 0; i < got.weights.size(); ++i) {
      INFO(got.weights[i].name);
      CHECK(at::equal(got.weights[i].tensor, expected.weights[i].tensor));
    }
  }
  /// Kills the other process when this one has sent its part of a sum and waits for the rest:
  /// that step, and the stage of this process, end within a second.
  void lose_within_sum(const run_kind& kind) {
    const auto stages = build_both(kind);
    auto made = compose(here_.system, stages, kind);
    REQUIRE(made.train(batch_of(1), kind.microbatches, 0.01));
    const auto before = lent_so_far();
    there_.stop();
    const tests::hold_up held;
    auto step = std::async(std::launch::async,
                           [&] { return made.train(batch_of(2), kind.microbatches, 0.01); });
    const auto wait_until = [](const std::function<bool()>& holds) {
      const auto end = std::chrono::steady_clock::now() + patience;
      while (!holds() && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      CHECK(holds());
    };
    wait_until([&] { return lent_so_far() > before; });
    CHECK(is_within_step(stages.front()));
    const auto since = std::chrono::steady_clock::now();
    there_.kill();
    CHECK_FALSE(step.get());
    wait_until([&] { return !is_within_step(stages.front()); });
    CHECK(std::chrono::steady_clock::now() - since <
          std::chrono::seconds(1) + held.over(tests::threads_of_a_loss));
  }
  /// By this process, in the last `check`.
  [[nodiscard]] std::uint64_t lent() const { return lent_; }

 private:
  [[nodiscard]] std::uint64_t lent_so_far() const { return here_.node->link_stats().bytes_lent; }
  /// A version can be taken between steps only.
  [[nodiscard]] bool is_within_step(const stage_actor& stage) {
    return !here_.ask->request<acknowledged>(stage, take_version{0}, patience).get();
  }
  std::vector<stage_actor> build_both(const run_kind& kind) {
    const auto there = here_.ask->request<stage_built>(host_, order_of(kind, 1), patience).get();
    if (!there) FAIL(there.error().text);
    return {build_here(kind, 0), caf::actor_cast<stage_actor>(there->stage)};
  }
  stage_actor build_here(const run_kind& kind, std::uint32_t replica) {
    auto made = build(here_.system, order_of(kind, replica), parts_of(here_));
    if (!made) FAIL(made.error().text);
    return built_.emplace_back(*made);
  }
  void drop() {
    for (const auto& each : std::exchange(built_, {}))
      caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
    static_cast<void>(here_.ask->request<acknowledged>(host_, drop_stages{}, patience).get());
  }

  child there_;
  member here_;
  host_actor host_;
  std::vector<stage_actor> built_;
  std::uint64_t lent_ = 0;
};

}  // namespace

TEST_CASE("Replicas in two processes lend each other gradients and sums, and keep the bits") {
  both_processes both(link_transport::shm);
  // The process sends each gradient that the other one adds up, and the sums of the rest.
  for (const std::uint32_t microbatches : {2U, 4U}) {
    both.check({.microbatches = microbatches});
    CHECK(both.lent() == steps * large_bytes);
  }
  both.check({.logical = 4});
  CHECK(both.lent() == steps * large_bytes);
  both.check({.idle_cores = true});
  CHECK(both.lent() == steps * large_bytes);
}

TEST_CASE("No update writes what another replica has lent") {
  both_processes both(link_transport::shm);  // where a write would end this process
  for (const auto& name : optimizers::built_in().names()) {
    INFO(name);
    both.check({.optimizer = name});
    both.check({.optimizer = name,
                .loss_scale = 8,
                .clip_norm = 0.1,
                .rules = {.clip_value = 0.01, .accumulate = 2}});
    CHECK(both.lent() == steps * large_bytes);
  }
  both.check({.shares_state = true, .loss_scale = 8});
  CHECK(both.lent() > 0);  // parts of what the other one owns
}

TEST_CASE("Over tcp replicas copy what they send, and keep the bits") {
  both_processes both(link_transport::tcp);
  both.check({});
  CHECK(both.lent() == 0);
}

TEST_CASE("A replica's process that dies within a sum is known to the other within a second") {
  both_processes both(link_transport::shm);
  both.lose_within_sum({});
}
