// What a pipeline does when one of its stages is lost, seen from the stages.

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/messages/stage.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/actors/stage/idle_company.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using engine::step_kind;
using company = tests::idle_company;

constexpr auto soon = 10s;

/// Of two replicas of two stages, loses the last one in a step of three micro-batches, and puts
/// another in its place.
void replace_last(company& run) {
  run.begin(step_kind::training, 3);
  run.lose(3);
  REQUIRE(run.pipeline->wait(soon));
  REQUIRE_FALSE(run.pipeline->finish());
  REQUIRE(run.pipeline->can_replay());
  CHECK(run.replace(3, 0).value() == 1);
}

/// Of two stages, loses the first one when it alone has answered a training step, which fails.
void lose_answered(company& run) {
  run.got.front()->answers = true;
  run.begin(step_kind::training);
  static_cast<void>(run.got.back()->runs.next());
  CHECK_FALSE(run.pipeline->wait(50ms));
  run.lose(0);
  REQUIRE(run.pipeline->wait(soon));
  CHECK(error_of(run.pipeline->finish()).code == errc::peer_lost);
}

}  // namespace

TEST_CASE("A stage that is lost after its answer fails the steps that others have not answered") {
  company run(2);
  lose_answered(run);
  CHECK(run.pipeline->under_way() == 1);
  REQUIRE(run.pipeline->can_replay());
  CHECK(run.replace(0, 0).value() == 1);
  // The others are waited for again.
  CHECK_FALSE(run.pipeline->wait(50ms));
  CHECK(run.got.back()->runs.next().number == 1);
  // The loss of the new one is noticed too.
  run.lose(2);
  CHECK(run.pipeline->wait(soon));
}

TEST_CASE("A stage that is lost after its answer fails the steps of a run that cannot replace it") {
  company run(2, {}, {}, /*can_replace=*/false);
  lose_answered(run);
}

TEST_CASE("Arithmetic that throws fails all steps under way, and another stage does them again") {
  company run(2);
  run.got.front()->answers = true;
  run.got.front()->throws_at = 2;
  run.begin(step_kind::training);
  CHECK_FALSE(run.pipeline->wait(50ms));
  run.begin(step_kind::training);
  REQUIRE(run.pipeline->wait(soon));  // also the step before, which others may wait in
  const auto failed = run.pipeline->finish();
  REQUIRE_FALSE(failed);
  CHECK(failed.error() == error{errc::handler_failed, "stage-0: F1 of step 2 failed: no memory"});
  CHECK(run.pipeline->under_way() == 2);
  REQUIRE(run.pipeline->can_replay());
  CHECK(run.replace(0, 0).value() == 1);
  CHECK(run.got.back()->runs.next().number == 1);
  CHECK(run.got.back()->runs.next().number == 2);
  CHECK_FALSE(run.pipeline->wait(50ms));
}

TEST_CASE("A new stage that throws at what the lost one had answered is noticed") {
  company run(2);
  lose_answered(run);
  run.next_throws_at = 1;
  CHECK(run.replace(0, 0).value() == 1);
  REQUIRE(run.pipeline->wait(soon));
  const auto failed = run.pipeline->finish();
  REQUIRE_FALSE(failed);
  CHECK(failed.error() == error{errc::handler_failed, "stage-0: F1 of step 1 failed: no memory"});
}

TEST_CASE("A new stage that throws at a step that is over fails the next one") {
  company run(1);
  run.got.front()->answers = true;
  run.begin(step_kind::training);
  REQUIRE(run.pipeline->finish());
  run.lose(0);
  run.next_throws_at = 1;
  CHECK(run.replace(0, 0).value() == 1);
  static_cast<void>(run.got.back()->runs.next());
  run.begin(step_kind::training);
  REQUIRE(run.pipeline->wait(soon));
  const auto failed = run.pipeline->finish();
  REQUIRE_FALSE(failed);
  CHECK(failed.error() == error{errc::handler_failed, "stage-0: F1 of step 1 failed: no memory"});
}

TEST_CASE("In an evaluation a new stage does the last training step and those under way again") {
  company run(2);
  for (const auto& each : run.got) each->answers = true;
  for (int i = 0; i < 2; ++i) {
    run.begin(step_kind::training);
    REQUIRE(run.pipeline->finish());
  }
  run.begin(step_kind::evaluation);
  REQUIRE(run.pipeline->finish());
  run.got.back()->answers = false;
  const auto first = run.begin(step_kind::evaluation);
  const auto second = run.begin(step_kind::evaluation);
  run.lose(0);
  REQUIRE(run.pipeline->wait(soon));
  REQUIRE_FALSE(run.pipeline->finish());
  REQUIRE(run.pipeline->can_replay());
  CHECK(run.replace(0, 1).value() == 2);
  auto& runs = run.got.back()->runs;
  const auto trained = runs.next();
  CHECK(trained.kind == step_kind::training);
  CHECK(trained.number == 2);
  for (const auto& key : {first, second}) {
    const auto order = runs.next();
    CHECK(order.kind == step_kind::evaluation);
    CHECK(order.step == key);
  }
  CHECK(runs.empty());
}

TEST_CASE(
    "Each run says which steps all stages have answered, and evaluations are forgotten then") {
  company run(1);
  auto& got = *run.got.front();
  got.answers = true;
  run.begin(step_kind::training);
  REQUIRE(run.pipeline->finish());
  const auto first = run.begin(step_kind::evaluation);
  const auto second = run.begin(step_kind::evaluation);
  REQUIRE(run.pipeline->finish());
  const auto third = run.begin(step_kind::evaluation);
  static_cast<void>(got.runs.next());
  CHECK(got.runs.next().done_before == first);
  CHECK(got.runs.next().done_before == first);
  CHECK(got.runs.next().done_before == second);
  REQUIRE(run.pipeline->finish());
  REQUIRE(run.pipeline->finish());
  run.lose(0);
  // All have answered: nothing but the last training step is to be done again.
  REQUIRE(run.pipeline->can_replay());
  CHECK(run.replace(0, 0).value() == 1);
  auto& runs = run.got.back()->runs;
  CHECK(runs.next().kind == step_kind::training);
  CHECK(runs.next().step == third);
  CHECK(runs.empty());
}

TEST_CASE("A new stage of one replica is given that one's micro-batches, and knows the others") {
  company run(4, {.replicas = 2});
  replace_last(run);
  auto& got = *run.got.back();
  const auto around = got.connections.next();
  CHECK(around.place.value == 3);
  CHECK(around.logs);
  CHECK(around.replicas.own == 1);
  REQUIRE(around.replicas.stages.size() == 2);
  CHECK(around.replicas.stages[0] == caf::actor_cast<caf::strong_actor_ptr>(run.all[1]));
  CHECK(around.replicas.stages[1] == caf::actor_cast<caf::strong_actor_ptr>(run.all.back()));
  CHECK(around.before.front().stage == caf::actor_cast<caf::strong_actor_ptr>(run.all[2]));
  const auto order = got.runs.next();
  CHECK(order.first_microbatch == 2);
  CHECK(order.shares == std::vector<std::uint32_t>{1});
}

TEST_CASE("A stage whose replica has no micro-batch of a step is not replayed from there") {
  company run(2, {.replicas = 2});
  run.begin(step_kind::training, 1);
  run.lose(1);
  REQUIRE(run.pipeline->can_replay());
  const auto replayed = error_of(run.replace(1, 0));
  CHECK(replayed.code == errc::stale);
  CHECK(replayed.text.find("its replica has no micro-batch of step 1") != std::string::npos);
}

TEST_CASE("A new stage of replicas that share out the optimizer's state is told so") {
  company run(4, {.replicas = 2, .shares_state = true});
  replace_last(run);
  const auto around = run.got.back()->connections.next();
  CHECK(around.logs);
  CHECK(around.replicas.shares_state);
}

TEST_CASE("Replicas that sum in batch norms go back all") {
  company run(2, {.replicas = 2, .synced_norm = true});
  run.begin(step_kind::training);
  CHECK_FALSE(run.got.front()->connections.next().logs);
  CHECK_FALSE(run.pipeline->can_replay());
}

TEST_CASE("A stage cannot be replayed before the first training step") {
  company run(1);
  CHECK_FALSE(run.pipeline->can_replay());
  run.begin(step_kind::evaluation);
  CHECK_FALSE(run.pipeline->can_replay());
}
