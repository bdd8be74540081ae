// Stages that NCCL sums or sends for lose one in the middle of that, and continue from their
// versions.

#include <algorithm>
#include <caf/actor_cast.hpp>
#include <iterator>

#include "actors/futures/requester.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/recovery/keeper_actor.hpp"
#include "tests/parity/nccl_company.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;

/// Keepers of versions: one of each stage's own, and one elsewhere that all share.
struct kept_elsewhere {
  kept_elsewhere(const std::shared_ptr<home>& where, std::size_t stages)
      : where_(where), shared_(actors::spawn_keeper(where->system, optimizers::built_in())) {
    for (std::size_t stage = 0; stage < stages; ++stage)
      own_.push_back(actors::spawn_keeper(where->system, optimizers::built_in()));
  }
  ~kept_elsewhere() {
    for (const auto& each : own_) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(shared_, caf::exit_reason::user_shutdown);
  }
  [[nodiscard]] std::vector<std::vector<caf::strong_actor_ptr>> all() const {
    std::vector<std::vector<caf::strong_actor_ptr>> keepers;
    for (const auto& each : own_) keepers.push_back({pointer(each), pointer(shared_)});
    return keepers;
  }
  /// The newest version that is kept of every stage, whatever became of their own keepers.
  [[nodiscard]] std::uint64_t newest() const {
    actors::requester ask(where_->system, {});
    std::vector<std::uint64_t> common;
    for (std::uint32_t stage = 0; stage < own_.size(); ++stage) {
      const auto kept =
          ask.request<actors::versions_kept>(shared_, actors::list_versions{stage}, 10s).get();
      REQUIRE(kept);
      std::vector<std::uint64_t> both;
      std::ranges::set_intersection(stage == 0 ? kept->steps : common, kept->steps,
                                    std::back_inserter(both));
      common = std::move(both);
    }
    REQUIRE_FALSE(common.empty());
    return common.back();
  }
  [[nodiscard]] std::vector<actors::version_place> at(std::uint64_t step) const {
    return std::vector<actors::version_place>(own_.size(), {pointer(shared_), step});
  }

 private:
  static caf::strong_actor_ptr pointer(const actors::keeper_actor& keeper) {
    return caf::actor_cast<caf::strong_actor_ptr>(keeper);
  }

  std::shared_ptr<home> where_;
  actors::keeper_actor shared_;
  std::vector<actors::keeper_actor> own_;
};

/// The first batches, and then a loss within a sum or a send of the next one.
std::vector<double> train_until_lost(const task& what, company& stages, std::size_t steps) {
  auto pipeline = stages.compose(what);
  REQUIRE(pipeline.take_versions(0));
  std::vector<double> losses;
  for (std::size_t step = 0; step < steps; ++step) {
    const auto outcome = pipeline.train(what.batches.at(step), microbatches, rate);
    if (!outcome) FAIL(outcome.error().text);
    losses.push_back(outcome->loss);
  }
  const std::string function = what.fast ? "ncclAllReduce" : "ncclSend";
  script(function, "stall");
  const int called = library().calls_of(function.c_str());
  auto next = std::async(std::launch::async, [&] {
    return pipeline.train(what.batches.at(steps), microbatches, rate);
  });
  while (library().calls_of(function.c_str()) == called) std::this_thread::yield();
  stages.kill(1);
  REQUIRE(next.wait_for(30s) == std::future_status::ready);
  REQUIRE_FALSE(next.get());
  ::unsetenv("FAKE_NCCL_SCRIPT");
  return losses;
}

/// What goes along edges by NCCL goes between processes.
homes homes_for(const task& what) {
  return what.edges == engine::edge_transport::link ? homes{std::make_shared<home>()}
                                                    : separate_homes(2);
}

trained train_with_loss(const task& given, std::size_t lost_after) {
  const auto in = homes_for(given);
  const kept_elsewhere keepers(in.front(), given.replicas * (given.cuts.size() + 1));
  task what = given;
  what.keepers = keepers.all();  // which their system outlives
  const std::vector<c10::Device> devices{fake::device(0), fake::device(1), fake::device(2),
                                         fake::device(3)};
  trained result{.line = {}, .losses = {}, .weights = {}, .state = {}, .dry = {}};
  {
    company stages(what, devices, nccl_maker(), in);
    result.losses = train_until_lost(what, stages, lost_after);
  }
  what.steps_before = keepers.newest();
  CHECK(what.steps_before + 1 >= lost_after);
  result.losses.resize(what.steps_before);
  company stages(what, devices, nccl_maker(), in);
  auto pipeline = stages.compose(what);
  result.line = pipeline.sum_line() + pipeline.edge_line();
  REQUIRE(pipeline.adopt_versions(keepers.at(what.steps_before)));
  REQUIRE(pipeline.take_versions(what.steps_before));
  for (auto step = what.steps_before; step < what.batches.size(); ++step) {
    const auto outcome = pipeline.train(what.batches.at(step), microbatches, rate);
    if (!outcome) FAIL(outcome.error().text);
    result.losses.push_back(outcome->loss);
  }
  read_stages(pipeline, result);
  return result;
}

void check_recovery(const task& what) {
  INFO((what.shares_state ? "shared state" : "") << (what.fast ? "fast" : ""));
  const auto expected =
      train(what, {fake::device(0), fake::device(1), fake::device(2), fake::device(3)},
            nccl_maker(), homes_for(what));
  const auto found = train_with_loss(what, 2);
  CHECK(found.line == expected.line);
  CHECK_THAT(found.line, ContainsSubstring("by NCCL"));
  CHECK(found.losses == expected.losses);
  check_same(expected.weights, found.weights);
  check_same(expected.state, found.state);
  check_nothing_found();
}

}  // namespace

TEST_CASE("Replicas that lose a stage while NCCL sums go on from their versions to the same bits") {
  const prepared ready;
  check_recovery({.build = decoder,
                  .batches = sentences({8, 8, 5, 8}),
                  .cuts = {2},
                  .optimizer = "adamw",
                  .options = {},
                  .replicas = 2});
  check_recovery(
      {.build = resnet, .batches = images({8, 8, 8, 8}), .replicas = 2, .shares_state = true});
}

TEST_CASE("Replicas that lose a stage in NCCL's own all-reduce go on from their versions") {
  const prepared ready;
  // The all-reduce of tests adds in one order; real ones promise none.
  check_recovery(
      {.build = decoder, .batches = sentences({8, 8, 5, 8}), .replicas = 2, .fast = true});
}

TEST_CASE("Stages that lose one while NCCL sends go on from their versions to the same bits") {
  const prepared ready;
  check_recovery({.build = decoder,
                  .batches = sentences({8, 8, 5, 8}),
                  .cuts = {2},
                  .optimizer = "adamw",
                  .options = {},
                  .edges = engine::edge_transport::nccl});
}
