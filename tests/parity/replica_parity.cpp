// Replicas of a pipeline in one process: the same bits whatever their number, and within rounding
// what plain autograd computes of the whole batch.

#include <algorithm>
#include <atomic>
#include <caf/actor_config.hpp>
#include <caf/error.hpp>
#include <caf/exit_reason.hpp>
#include <caf/make_actor.hpp>
#include <caf/monitorable_actor.hpp>
#include <caf/scoped_actor.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <chrono>
#include <future>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/messages/stage.hpp"
#include "actors/messages/transfer.hpp"
#include "tests/parity/one_piece.hpp"
#include "tests/parity/stage_company.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::WithinRel;

task four_replicas(std::function<engine::model()> build, std::vector<engine::batch> batches) {
  return {.build = std::move(build),
          .batches = std::move(batches),
          .rules = {.groups = {"*.bias|*bn* weight_decay=0.1 lr_scale=0.5"}},
          .logical = 4,
          .clip_norm = 0.5,
          .microbatches = 5,
          .rate = 0.05};
}

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

/// Of each stage's optimizer after training.
std::vector<std::uint64_t> state_bytes(const task& what) {
  const auto in = std::make_shared<home>();
  company all(what, {c10::Device(c10::kCPU)}, nullptr, in);
  train(all, what);
  std::vector<std::uint64_t> bytes;
  for (const auto& stage : all.stages()) bytes.push_back(state_bytes_of(in->system, stage));
  return bytes;
}

/// As one process computes the whole first batch, in as many micro-batches as it has samples for.
void check_in_one_piece(const engine::step_result& found, const task& what) {
  const auto& batch = what.batches.front();
  const auto count = std::min<std::int64_t>(what.microbatches, batch.inputs.size(0));
  const auto parts = engine::split_batch(batch, count).value();
  const auto alone = tests::run_in_one_piece(what.build(), {.seed = tests::seed}, 1, parts);
  CHECK_THAT(found.loss, WithinRel(alone.loss, 1e-6));
  tests::check_close(found, alone, 1e-4);
}

/// And as the whole batch in one process, in as many micro-batches.
void check_all(const task& what, const std::vector<way>& ways) {
  check_in_one_piece(tests::check_ways(what, ways).dry, what);
}

/// Stands before a stage, and tells it of a step of which its replica has nothing only after the
/// gradient of a tied weight has come for that step.
class told_late final : public caf::monitorable_actor {
 public:
  told_late(caf::actor_config& config, actors::stage_actor stage)
      : caf::monitorable_actor(config), stage_(std::move(stage)) {}

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit* unit) override {
    const std::scoped_lock in_order(mutex_);
    auto& content = what->content();
    if (content.match_elements<actors::run_stage>() &&
        has_nothing(content.get_as<actors::run_stage>(0)))
      return static_cast<void>(held_ = std::move(what));
    const bool is_tie = content.match_elements<actors::tied_gradient>();
    auto* const stage = caf::actor_cast<caf::abstract_actor*>(stage_);
    stage->enqueue(std::move(what), unit);
    if (!is_tie || !held_) return;
    stage->enqueue(std::move(held_), unit);
    ++late_;
  }

  [[nodiscard]] int late() const {
    const std::scoped_lock lock(mutex_);
    return late_;
  }

 private:
  static bool has_nothing(const actors::run_stage& run) {
    return run.kind == engine::step_kind::training && !run.shares.empty() &&
           std::ranges::all_of(run.shares, [](auto count) { return count == 0; });
  }

  const actors::stage_actor stage_;
  mutable std::mutex mutex_;
  caf::mailbox_element_ptr held_;
  int late_ = 0;
};

/// Passes messages on to a stage, but none from the first part of a sum over links on.
class cut_off final : public caf::monitorable_actor {
 public:
  cut_off(caf::actor_config& config, actors::stage_actor stage)
      : caf::monitorable_actor(config), stage_(std::move(stage)) {}

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit* unit) override {
    if (is_dead_) return bounce(what, caf::make_error(caf::exit_reason::kill));
    if (is_deaf_) return;
    if (!what->content().match_elements<actors::replica_gradients>())
      return static_cast<void>(
          caf::actor_cast<caf::abstract_actor*>(stage_)->enqueue(std::move(what), unit));
    if (!is_deaf_.exchange(true)) within_sum_.set_value();
  }

  [[nodiscard]] std::future<void> within_sum() { return within_sum_.get_future(); }
  void die() {
    is_dead_ = true;
    cleanup(caf::make_error(caf::exit_reason::kill), nullptr);
  }

 private:
  const actors::stage_actor stage_;
  std::atomic<bool> is_deaf_ = false;
  std::atomic<bool> is_dead_ = false;
  std::promise<void> within_sum_;
};

/// Passes messages on to a stage, and counts the micro-batches of evaluations that it is given.
class counted final : public caf::monitorable_actor {
 public:
  counted(caf::actor_config& config, actors::stage_actor stage)
      : caf::monitorable_actor(config), stage_(std::move(stage)) {}

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit* unit) override {
    const auto& content = what->content();
    if (content.match_elements<actors::run_stage>()) {
      const auto& run = content.get_as<actors::run_stage>(0);
      if (run.kind == engine::step_kind::evaluation)
        evaluated_ += std::reduce(run.shares.begin(), run.shares.end());
    }
    caf::actor_cast<caf::abstract_actor*>(stage_)->enqueue(std::move(what), unit);
  }

  [[nodiscard]] std::uint32_t evaluated() const { return evaluated_; }

 private:
  const actors::stage_actor stage_;
  std::atomic<std::uint32_t> evaluated_ = 0;
};

/// Trains with one of the stages told late. A step that does not end is failed.
std::vector<engine::named_tensor> weights_after(const task& what, std::size_t late) {
  const auto in = std::make_shared<home>();
  company all(what, {c10::Device(c10::kCPU)}, nullptr, in);
  caf::actor_config config;
  const auto before = caf::make_actor<told_late, actors::stage_actor>(
      in->system.next_actor_id(), in->system.node(), &in->system, config, all.stages()[late]);
  all.put(late, before);
  auto pipeline = all.compose(what);
  for (const auto& batch : what.batches) {
    auto step = std::async(std::launch::async,
                           [&] { return pipeline.train(batch, what.microbatches, what.rate); });
    if (step.wait_for(std::chrono::seconds(60)) != std::future_status::ready) all.kill(0);
    const auto outcome = step.get();
    if (!outcome) FAIL(outcome.error().text);
  }
  CHECK(static_cast<told_late*>(caf::actor_cast<caf::abstract_actor*>(before))->late() == 1);
  return pipeline.read_weights().value();
}

}  // namespace

TEST_CASE("Any number of replicas of four logical ones trains images to the same bits") {
  // Two replicas of four have nothing in the last.
  check_all(four_replicas(resnet, tests::images({7, 10, 3, 2})),
            {{.replicas = 2}, {.replicas = 4}, {.replicas = 2, .cuts = {5}, .schedule = "zb-h1"}});
}

TEST_CASE("Any number of replicas trains tied weights with dropout to the same bits") {
  check_all(four_replicas(decoder, tests::sentences({7, 12, 1})),
            {{.cuts = {2}},
             {.replicas = 2, .cuts = {2}},
             {.replicas = 4, .cuts = {1, 3}, .schedule = "gpipe"}});
}

TEST_CASE("Replicas compute what one process does of every batch, an uneven and a small one too") {
  at::set_num_threads(1);
  for (const std::int64_t size : {12, 7, 3, 1})  // of 3 and 1 some replicas have nothing
    for (const std::uint32_t replicas : {1U, 2U, 4U}) {
      INFO(size << " samples, " << replicas << " replicas");
      auto what = four_replicas(decoder, tests::sentences({size}));
      what.replicas = replicas;
      company all(what, {c10::Device(c10::kCPU)});
      auto pipeline = all.compose(what);
      const auto found = pipeline.dry_run(what.batches.front(), what.microbatches);
      if (!found) FAIL(found.error().text);
      check_in_one_piece(*found, what);
    }
}

TEST_CASE("Under every schedule replicas train to the same bits with all that a step may have") {
  const auto with_all = [](task what) {
    what.rules.clip_value = 0.05;
    what.rules.accumulate = 2;
    what.loss_scale = 64;
    return what;
  };
  // With tied weights and dropout, the two ends on different stages, and on one under zb-v.
  std::vector<way> tied, images;
  for (const bool shares_state : {false, true}) {
    for (const char* const schedule : {"gpipe", "1f1b", "zb-h1", "zb-h2"})
      tied.push_back({.cuts = {2}, .schedule = schedule, .shares_state = shares_state});
    for (const char* const schedule : {"interleaved-1f1b", "zb-v"}) {
      tied.push_back({.cuts = {2, 4, 5}, .schedule = schedule, .shares_state = shares_state});
      images.push_back({.cuts = {3, 5, 7}, .schedule = schedule, .shares_state = shares_state});
    }
  }
  for (auto& each : tied) each.recompute = {"h0", "h1.attention"};
  for (auto& each : images) each.recompute = {"layer1", "layer2"};
  for (auto* const ways : {&tied, &images})
    for (auto& each : *ways) each.replicas = 2;
  check_ways(with_all(four_replicas(decoder, tests::sentences({7, 12, 1, 9}))), tied);
  check_ways(with_all(four_replicas(resnet, tests::images({7, 10}))), images);
}

TEST_CASE("An evaluation is shared out to replicas as a step is") {
  at::set_num_threads(1);
  const task what{.build = decoder, .batches = tests::sentences({7}), .replicas = 2};
  const auto in = std::make_shared<home>();
  company all(what, {c10::Device(c10::kCPU)}, nullptr, in);
  std::vector<actors::stage_actor> before;
  for (std::size_t replica = 0; replica < what.replicas; ++replica) {
    caf::actor_config config;
    before.push_back(caf::make_actor<counted, actors::stage_actor>(
        in->system.next_actor_id(), in->system.node(), &in->system, config, all.stages()[replica]));
    all.put(replica, before.back());
  }
  auto pipeline = all.compose(what);
  const auto tested = pipeline.evaluate(what.batches.front(), what.microbatches);
  if (!tested) FAIL(tested.error().text);
  for (const auto& each : before)
    CHECK(static_cast<counted*>(caf::actor_cast<caf::abstract_actor*>(each))->evaluated() ==
          what.microbatches / what.replicas);
}

TEST_CASE(
    "A stage without micro-batches may hear of a step after the tied gradient that is for it") {
  at::set_num_threads(1);
  const auto batches = tests::sentences({8, 1, 7});  // the second replica has nothing in one
  const task alone{.build = decoder, .batches = batches, .logical = 2};
  task shared{.build = decoder, .batches = batches, .cuts = {2}, .replicas = 2};
  const auto in = std::make_shared<home>();
  company one(alone, {c10::Device(c10::kCPU)}, nullptr, in);
  auto pipeline = one.compose(alone);
  for (const auto& batch : batches) REQUIRE(pipeline.train(batch, alone.microbatches, alone.rate));
  const auto expected = pipeline.read_weights().value();
  for (const std::size_t late : {2, 3}) check_same(expected, weights_after(shared, late));
  shared.cuts = {2, 4, 5};
  shared.schedule = "interleaved-1f1b";
  for (const std::size_t late : {2, 3}) check_same(expected, weights_after(shared, late));
}

TEST_CASE("A replica that dies in the middle of a sum over links is known to others in a second") {
  at::set_num_threads(1);
  const task what{.build = decoder, .batches = tests::sentences({8}), .replicas = 2};
  const auto in = std::make_shared<home>();
  company all(what, {c10::Device(c10::kCPU)}, nullptr, in);
  caf::actor_config config;
  const auto before = caf::make_actor<cut_off, actors::stage_actor>(
      in->system.next_actor_id(), in->system.node(), &in->system, config, all.stages()[1]);
  auto& dying = *static_cast<cut_off*>(caf::actor_cast<caf::abstract_actor*>(before));
  all.put(1, before);
  auto pipeline = all.compose(what);
  const auto within_sum = dying.within_sum();
  auto step = std::async(std::launch::async, [&] {
    return pipeline.train(what.batches.front(), what.microbatches, what.rate);
  });
  constexpr auto long_enough = std::chrono::seconds(20);
  REQUIRE(within_sum.wait_for(long_enough) == std::future_status::ready);
  const auto is_waiting = [&] { return is_within_step(in->system, all.stages().front()); };
  CHECK(is_waiting());
  const auto since = std::chrono::steady_clock::now();
  dying.die();
  while (is_waiting() && std::chrono::steady_clock::now() - since < long_enough)
    std::this_thread::yield();
  CHECK(std::chrono::steady_clock::now() - since < std::chrono::seconds(1));
  REQUIRE(step.wait_for(long_enough) == std::future_status::ready);
  CHECK_FALSE(step.get());
}

TEST_CASE("Replicas that share out the optimizer's state keep the bits, and each an even share") {
  auto images = four_replicas(resnet, tests::images({10, 10}));
  check_all(images, {{.replicas = 2, .shares_state = true},
                     {.replicas = 4, .shares_state = true},
                     {.replicas = 2, .cuts = {5}, .schedule = "zb-h1", .shares_state = true},
                     {.replicas = 2, .cuts = {5}, .schedule = "zb-h2", .shares_state = true},
                     {.replicas = 2, .cuts = {3, 5, 7}, .schedule = "zb-v", .shares_state = true}});
  images.build = whole_resnet;
  const auto whole = state_bytes(images).front();
  images.shares_state = true;
  // Whole parameters of this model cannot be shared out to four more evenly than within 5.5%.
  for (const auto& [replicas, uneven] : {std::pair{2U, 0.01}, std::pair{4U, 0.06}}) {
    images.replicas = replicas;
    const auto shared = state_bytes(images);
    REQUIRE(shared.size() == replicas);
    CHECK(std::reduce(shared.begin(), shared.end()) == whole);
    const auto share = static_cast<double>(whole) / replicas;
    for (const auto bytes : shared)
      CHECK_THAT(static_cast<double>(bytes), WithinRel(share, uneven));
  }
  check_all(four_replicas(decoder, tests::sentences({7, 12, 1})),
            {{.replicas = 2, .shares_state = true},
             {.replicas = 2, .cuts = {2}, .shares_state = true},
             {.replicas = 2, .cuts = {3}, .schedule = "zb-v", .shares_state = true},
             {.replicas = 4, .cuts = {1, 3}, .schedule = "gpipe", .shares_state = true}});
}

TEST_CASE("Replicas that own packed parameters keep the bits, and have even shares of the state") {
  const auto three_blocks = [] {
    const apps::gpt_options shape{.layers = 3, .width = 32, .heads = 4, .context = 16};
    return engine::make_whole(apps::gpt_blueprint(64, shape).value(), tests::seed).value();
  };
  auto decoding = four_replicas(three_blocks, tests::sentences({7, 12}));
  const way packed{.replicas = 4, .cuts = {1, 7}, .shares_state = true};
  check_ways(decoding, {packed});
  decoding.replicas = packed.replicas;
  decoding.cuts = packed.cuts;
  decoding.shares_state = packed.shares_state;
  const auto bytes = state_bytes(decoding);
  REQUIRE(bytes.size() == 12);
  const std::vector<std::uint64_t> blocks{bytes[1], bytes[4], bytes[7], bytes[10]};
  const auto share = static_cast<double>(std::reduce(blocks.begin(), blocks.end())) / 4;
  // The largest parameters first, each to who has the fewest bytes, would give one 7% more.
  for (const auto own : blocks) CHECK_THAT(static_cast<double>(own), WithinRel(share, 0.01));
}

TEST_CASE("Stages that replicas do not share evenly are refused") {
  actors::system_config config;
  caf::actor_system system(config);
  auto spawned =
      actors::local_stages::spawn(system, decoder(), {2}, {}, optimizers::built_in()).value();
  for (const auto& [replicas, logical] : {std::pair(3U, 3U), std::pair(2U, 3U), std::pair(2U, 6U)})
    CHECK_FALSE(actors::pipeline::compose(system, spawned.handles(), "1f1b",
                                          {.replicas = replicas, .logical_replicas = logical}));
}
