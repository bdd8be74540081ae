// What a stage's versions are stored with, and who is told when they cannot be stored.

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/futures/requester.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/mirror.hpp"
#include "actors/messages/notes.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/messages/slices.hpp"
#include "actors/pipeline/host_actor.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/recovery/keeper_actor.hpp"
#include "actors/system.hpp"
#include "actors/transfer/pieces.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/unit/two_linear_layers.hpp"

using namespace troupe;

namespace {

constexpr std::size_t stage_count = 2;

/// Takes a tenth of a second for each store, and keeps nothing.
actors::keeper_actor::behavior_type slow_keeper() {
  return {
      [](const actors::store_version&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        return actors::acknowledged{};
      },
      [](const actors::store_update&) { return actors::acknowledged{}; },
      [](const actors::describe_keeper&) { return actors::keeper_described{}; },
      [](const actors::list_versions&) { return actors::versions_kept{}; },
      [](const actors::fetch_version&) -> caf::result<actors::version_piece> {
        return caf::make_error(caf::sec::bad_function_call);
      },
      [](const actors::forget_kept&) { return actors::acknowledged{}; },
  };
}

/// Answers everything with this.
actors::keeper_actor::behavior_type keeper_that_fails(const error& why) {
  const auto no = [why] { return actors::to_caf(why); };
  return {
      [no](const actors::store_version&) -> caf::result<actors::acknowledged> { return no(); },
      [no](const actors::store_update&) -> caf::result<actors::acknowledged> { return no(); },
      [no](const actors::describe_keeper&) -> caf::result<actors::keeper_described> {
        return no();
      },
      [no](const actors::list_versions&) -> caf::result<actors::versions_kept> { return no(); },
      [no](const actors::fetch_version&) -> caf::result<actors::version_piece> { return no(); },
      [no](const actors::forget_kept&) -> caf::result<actors::acknowledged> { return no(); },
  };
}

/// As one whose process was lost.
actors::keeper_actor::behavior_type lost_keeper() {
  return keeper_that_fails({errc::peer_lost, "its process is gone"});
}

/// As one whose process is ending.
actors::keeper_actor::behavior_type ended_keeper() {
  return keeper_that_fails({errc::unknown_target, "the actor ended: user_shutdown"});
}

actors::keeper_actor::behavior_type refusing_keeper() {
  return keeper_that_fails({errc::handler_failed, "no memory is left"});
}

/// Two stages, each of which has a keeper of its own and one that both share.
struct stages_with_keepers {
  enum class keeping : std::uint8_t { right, slow, lost, ended, refusing, none };

  /// `is_spare`: the shared one, which none replaces then.
  explicit stages_with_keepers(keeping how = keeping::right, bool is_spare = false)
      : shared(how == keeping::slow       ? system.spawn<caf::detached>(slow_keeper)
               : how == keeping::lost     ? system.spawn(lost_keeper)
               : how == keeping::ended    ? system.spawn(ended_keeper)
               : how == keeping::refusing ? system.spawn(refusing_keeper)
                                          : actors::spawn_keeper(system, optimizers::built_in())) {
    auto spawned = actors::local_stages::spawn(system, tests::two_linear_layers(3, 8, 4), {1}, {},
                                               optimizers::built_in());
    REQUIRE(spawned);
    stages = std::make_unique<actors::local_stages>(std::move(*spawned));
    std::vector<std::vector<caf::strong_actor_ptr>> keepers;
    for (std::size_t stage = 0; stage < stage_count && how != keeping::none; ++stage)
      keepers.push_back(
          {as_pointer(actors::spawn_keeper(system, optimizers::built_in())), as_pointer(shared)});
    auto composed = actors::pipeline::compose(
        system, stages->handles(), "1f1b",
        {.keepers = keepers,
         .spare_keeper = is_spare ? as_pointer(shared) : caf::strong_actor_ptr(),
         .logs_edges = (how == keeping::lost || how == keeping::ended) && !is_spare});
    REQUIRE(composed);
    pipeline = std::make_unique<actors::pipeline>(std::move(*composed));
    for (const auto& each : keepers) own.push_back(each.front());
  }
  ~stages_with_keepers() {
    for (const auto& each : own)
      caf::anon_send_exit(caf::actor_cast<caf::actor>(each), caf::exit_reason::user_shutdown);
    end_shared_keeper();
  }

  static caf::strong_actor_ptr as_pointer(const actors::keeper_actor& keeper) {
    return caf::actor_cast<caf::strong_actor_ptr>(keeper);
  }
  void end_shared_keeper() { caf::anon_send_exit(shared, caf::exit_reason::user_shutdown); }

  actors::system_config config;
  caf::actor_system system{config};
  const actors::keeper_actor shared;
  std::vector<caf::strong_actor_ptr> own;
  std::unique_ptr<actors::local_stages> stages;
  std::unique_ptr<actors::pipeline> pipeline;
};

/// Has a keeper store a version of stage 1, in one piece.
result<actors::acknowledged> store_at(const actors::keeper_actor& keeper, actors::requester& ask,
                                      std::uint32_t incarnation, std::uint64_t step) {
  const std::vector<engine::named_tensor> version{{"weight", at::randn({3})}};
  const auto piece = actors::cut_piece(version, {}, {}, actors::piece_tensors::shared);
  REQUIRE(piece);
  const actors::store_version what{
      .stage = 1, .step = step, .incarnation = incarnation, .piece = *piece};
  return ask.request<actors::acknowledged>(keeper, what, std::chrono::seconds(20)).get();
}

/// Of which steps a keeper has versions of stage 1.
std::vector<std::uint64_t> steps_at(const actors::keeper_actor& keeper, actors::requester& ask) {
  const auto kept =
      ask.request<actors::versions_kept>(keeper, actors::list_versions{1}, std::chrono::seconds(20))
          .get();
  REQUIRE(kept);
  return kept->steps;
}

}  // namespace

TEST_CASE("A request to take versions fails at once when one of their keepers is gone") {
  stages_with_keepers company;
  REQUIRE(company.pipeline->take_versions(0));
  const engine::batch batch{at::randn({4, 3}), at::randint(0, 4, {4}, at::kLong)};
  REQUIRE(company.pipeline->train(batch, 2, 0.1));
  company.end_shared_keeper();
  const auto began = std::chrono::steady_clock::now();
  const auto taken = company.pipeline->take_versions(1);
  REQUIRE_FALSE(taken);
  CHECK(taken.error().code != errc::timed_out);
  CHECK_FALSE(company.pipeline->train(batch, 2, 0.1));
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(20));
}

TEST_CASE("Who orders versions is told of a lost keeper, though another might take its place") {
  for (const auto how : {stages_with_keepers::keeping::lost, stages_with_keepers::keeping::ended}) {
    stages_with_keepers company(how);
    const auto began = std::chrono::steady_clock::now();
    const auto taken = company.pipeline->take_versions(0);
    REQUIRE_FALSE(taken);
    CHECK(taken.error().code == errc::peer_lost);
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(20));
  }
}

TEST_CASE("A stage without one of its keepers refuses further steps, and leaves none waiting") {
  stages_with_keepers company(stages_with_keepers::keeping::refusing);
  const engine::batch batch{at::randn({4, 3}), at::randint(0, 4, {4}, at::kLong)};
  REQUIRE_FALSE(company.pipeline->take_versions(0));
  const auto began = std::chrono::steady_clock::now();
  const auto trained = company.pipeline->train(batch, 2, 0.1);
  REQUIRE_FALSE(trained);
  CHECK(trained.error().text.find("no memory is left") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(20));
}

TEST_CASE("Stages go on without a keeper that none replaces, whatever becomes of it") {
  for (const auto how :
       {stages_with_keepers::keeping::lost, stages_with_keepers::keeping::refusing}) {
    stages_with_keepers company(how, true);
    const engine::batch batch{at::randn({4, 3}), at::randint(0, 4, {4}, at::kLong)};
    CHECK(company.pipeline->take_versions(0));
    CHECK(company.pipeline->train(batch, 2, 0.1));
    CHECK(company.pipeline->take_versions(1));
  }
}

TEST_CASE(
    "A keeper refuses versions of a stage that was replaced, and has those of the other one") {
  actors::system_config config;
  caf::actor_system system{config};
  const auto keeper = actors::spawn_keeper(system, optimizers::built_in());
  actors::requester ask(system);
  REQUIRE(store_at(keeper, ask, 1, 4));
  REQUIRE(store_at(keeper, ask, 2, 4));
  const auto refused = store_at(keeper, ask, 1, 5);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::stale);
  CHECK(steps_at(keeper, ask) == std::vector<std::uint64_t>{4});
  caf::anon_send_exit(keeper, caf::exit_reason::user_shutdown);
}

TEST_CASE("A node forgets versions and notes where the run goes on from elsewhere") {
  constexpr auto patience = std::chrono::seconds(20);
  actors::system_config config;
  caf::actor_system system{config};
  const auto host = actors::spawn_host(system, {});
  actors::requester ask(system);
  const auto opened =
      ask.request<actors::keeper_opened>(host, actors::open_keeper{}, patience).get();
  REQUIRE(opened);
  const auto keeper = caf::actor_cast<actors::keeper_actor>(opened->keeper);
  const auto notes = [&] {
    const auto kept = ask.request<actors::notes_kept>(host, actors::list_notes{}, patience).get();
    REQUIRE(kept);
    return kept->notes.size();
  };
  REQUIRE(store_at(keeper, ask, 2, 4));
  REQUIRE(store_at(keeper, ask, 2, 6));
  const actors::note_step note{.step = 4, .slices = "0-9 "};
  REQUIRE(ask.request<actors::acknowledged>(host, note, patience).get());
  REQUIRE(steps_at(keeper, ask) == std::vector<std::uint64_t>{4, 6});
  REQUIRE(notes() == 1);
  REQUIRE(ask.request<actors::acknowledged>(host, actors::forget_kept{}, patience).get());
  CHECK(steps_at(keeper, ask).empty());
  CHECK(notes() == 0);
  // Of an earlier incarnation than 2, which is refused where the later one is not forgotten.
  REQUIRE(store_at(keeper, ask, 1, 5));
  CHECK(steps_at(keeper, ask) == std::vector<std::uint64_t>{5});
  caf::anon_send_exit(host, caf::exit_reason::user_shutdown);
}

TEST_CASE("A version may be taken while that of the step before is on its way to a keeper") {
  stages_with_keepers company(stages_with_keepers::keeping::slow);
  const engine::batch batch{at::randn({4, 3}), at::randint(0, 4, {4}, at::kLong)};
  REQUIRE(company.pipeline->take_versions(0));
  REQUIRE(company.pipeline->train(batch, 2, 0.1));
  CHECK(company.pipeline->take_versions(1));
  CHECK(company.pipeline->train(batch, 2, 0.1));
}

TEST_CASE("A slice is written as often as it is ordered, while it is copied and after") {
  for (const auto how : {stages_with_keepers::keeping::none, stages_with_keepers::keeping::right}) {
    const tests::scratch_folder folder;
    stages_with_keepers company(how);
    const engine::batch batch{at::randn({4, 3}), at::randint(0, 4, {4}, at::kLong)};
    if (how == stages_with_keepers::keeping::right) REQUIRE(company.pipeline->take_versions(0));
    REQUIRE(company.pipeline->train(batch, 2, 0.1));
    actors::requester ask(company.system);
    std::vector<actors::future<actors::slice_written>> answers;
    for (int i = 0; i < 20; ++i) {
      const actors::write_slice order{.step = 1,
                                      .folder = folder / std::to_string(i),
                                      .weights = "w",
                                      .state = "s",
                                      .is_own = true};
      answers.push_back(ask.request<actors::slice_written>(company.stages->handles().front(), order,
                                                           std::chrono::seconds(20)));
    }
    const auto last = answers.back().get();
    REQUIRE(last);
    CHECK(last->files.contains("w"));
    for (auto& each : answers) {
      const auto answer = each.get();
      if (answer)
        CHECK((answer->files == last->files));
      else
        CHECK(answer.error().code == errc::cancelled);  // another one was ordered before it began
    }
  }
}
