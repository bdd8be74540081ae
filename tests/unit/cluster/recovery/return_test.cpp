// What a run decides that has lost stages: replay, versions, checkpoints, beginning, end.

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cluster/recovery/return_core.hpp"

namespace {

using namespace troupe;
using core = cluster::return_core;
using effect = core::effect;
using places = std::vector<std::size_t>;
using steps = std::vector<std::uint64_t>;

/// A core behind step 5 that has lost these places, and is to list what its stages have.
core listing(places lost, bool may_begin_anew = false) {
  core made(may_begin_anew);
  made.reached(5);
  CHECK(made.lost(std::move(lost)) == effect(core::drop_stages{}));
  CHECK(made.dropped() == effect(core::list_versions{}));
  return made;
}

/// The same, without a version of some stage, when the nodes are replaced.
core without_versions(bool may_begin_anew = false) {
  auto made = listing({1}, may_begin_anew);
  CHECK(made.listed({{4, 5}, {}}) == effect(core::replace_lost{{1}}));
  CHECK(made.replaced() == effect(core::list_checkpoints{}));
  return made;
}

}  // namespace

TEST_CASE("all stages go back to the newest version of all, on nodes that are replaced before") {
  auto run = listing({2, 0});
  CHECK(run.without_node() == places{2, 0});
  CHECK(run.listed({{4, 5}, {3, 4}, {4}}) == effect(core::replace_lost{{2, 0}}));
  CHECK(run.without_node().empty());
  CHECK(run.replaced() == effect(core::go_on{core::source::versions, 4}));
}

TEST_CASE("a version is passed over whose step was done by all and never reported") {
  auto run = listing({1});
  CHECK(run.listed({{5, 6}, {5, 6}, {5, 6}}) == effect(core::replace_lost{{1}}));
  CHECK(run.replaced() == effect(core::go_on{core::source::versions, 5}));
}

TEST_CASE("without a version of some stage the newest own checkpoint that can be read is next") {
  auto run = without_versions();
  CHECK(run.own_checkpoints({12, 8, 4}) == effect(core::read_checkpoint{12}));
  CHECK(run.was_read(false) == effect(core::read_checkpoint{8}));
  CHECK(run.was_read(true) == effect(core::go_on{core::source::checkpoint, 8}));
}

TEST_CASE("without a checkpoint the run goes back to its beginning, or starts over if it may") {
  for (const auto& own : {steps{}, steps{8, 4}}) {
    for (const bool may_begin_anew : {false, true}) {
      auto run = without_versions(may_begin_anew);
      auto next = run.own_checkpoints(own);
      for (const auto step : own) {
        CHECK(next == effect(core::read_checkpoint{step}));
        next = run.was_read(false);
      }
      CHECK(next == effect(core::read_beginning{}));
      auto again = run;
      CHECK(again.was_read(true) == effect(core::go_on{core::source::beginning, 0}));
      CHECK(run.was_read(false) == (may_begin_anew
                                        ? effect(core::go_on{core::source::anew, 0})
                                        : effect(core::end_run{core::reason::no_beginning})));
    }
  }
}

TEST_CASE(
    "a checkpoint that stages cannot read after all is passed over as one that cannot be read") {
  auto run = without_versions();
  CHECK(run.own_checkpoints({8, 4}) == effect(core::read_checkpoint{8}));
  CHECK(run.was_read(true) == effect(core::go_on{core::source::checkpoint, 8}));
  CHECK(run.was_read(false) == effect(core::read_checkpoint{4}));
  CHECK(run.was_read(true) == effect(core::go_on{core::source::checkpoint, 4}));
  CHECK(run.was_read(false) == effect(core::read_beginning{}));
  CHECK(run.was_read(true) == effect(core::go_on{core::source::beginning, 0}));
}

TEST_CASE("a loss during a return begins it again, and forgets what was found") {
  auto run = listing({1});
  CHECK(run.listed({{5}, {5}, {5}}) == effect(core::replace_lost{{1}}));
  CHECK(run.lost({2}) == effect(core::drop_stages{}));
  CHECK(run.without_node() == places{2});
  CHECK(run.listed({{5}, {5}, {}}) == effect(core::replace_lost{{2}}));
  CHECK(run.replaced() == effect(core::list_checkpoints{}));
  CHECK(run.own_checkpoints({4, 2}) == effect(core::read_checkpoint{4}));
  CHECK(run.lost({0}) == effect(core::drop_stages{}));
  CHECK(run.listed({{}, {}, {}}) == effect(core::replace_lost{{0}}));
  CHECK(run.own_checkpoints({2}) == effect(core::read_checkpoint{2}));
  CHECK(run.was_read(false) == effect(core::read_beginning{}));
}

TEST_CASE("what fails without a loss ends the run, unless a replay has come half-way") {
  core run(false);
  run.reached(5);
  CHECK(run.lost({}) == effect(core::end_run{core::reason::nobody_lost}));
  CHECK_FALSE(run.begin_replay({}));
  CHECK(run.lost({}) == effect(core::end_run{core::reason::nobody_lost}));
  REQUIRE(run.begin_replay({1}));
  CHECK(run.is_half_mended());
  CHECK(run.lost({}) == effect(core::drop_stages{}));
  CHECK(run.listed({{5}, {5}}) == effect(core::replace_lost{{}}));
  CHECK(run.is_half_mended());
  CHECK(run.replaced() == effect(core::go_on{core::source::versions, 5}));
  CHECK_FALSE(run.is_half_mended());
  REQUIRE(run.begin_replay({1}));
  run.replayed();
  CHECK(run.lost({}) == effect(core::end_run{core::reason::nobody_lost}));
}

TEST_CASE("stages that are found to be lost one by one are replayed together, which counts once") {
  core run(false);
  run.reached(5);
  for (const auto& lost : {places{2}, places{0, 2}, places{0, 1, 2}, places{0, 1, 2, 3}}) {
    REQUIRE(run.begin_replay(lost));
    CHECK(run.without_node() == lost);
  }
  CHECK(run.in_vain() == 0);
  CHECK(run.replay_listed() == places{0, 1, 2, 3});
  CHECK(run.without_node().empty());
  CHECK(run.in_vain() == 1);
  REQUIRE(run.begin_replay({4}));  // while the others are replayed
  CHECK(run.is_half_mended());
  CHECK(run.replay_listed() == places{4});
  CHECK(run.in_vain() == 2);
  run.replayed();
  CHECK_FALSE(run.is_half_mended());
}

TEST_CASE("a run that is lost again and again without a new step ends, and one with goes on") {
  core run(false);
  run.reached(7);
  CHECK(run.last_reached() == 7);
  REQUIRE(run.begin_replay({1}));
  CHECK(run.replay_listed() == places{1});
  CHECK(run.in_vain() == 1);
  run.replayed();
  for (int i = 0; i < core::most_in_vain - 1; ++i) {
    run.reached(7);
    CHECK(run.lost({1}) == effect(core::drop_stages{}));
    CHECK(run.listed({{6}, {6}}) == effect(core::replace_lost{{1}}));
  }
  CHECK(run.in_vain() == core::most_in_vain);
  CHECK(run.lost({}) == effect(core::end_run{core::reason::nobody_lost}));
  CHECK(run.lost({1}) == effect(core::end_run{core::reason::in_vain}));
  CHECK_FALSE(run.begin_replay({1}));
  run.reached(6);
  CHECK(run.in_vain() == core::most_in_vain);
  CHECK(run.last_reached() == 7);
  run.reached(8);
  CHECK(run.in_vain() == 0);
  CHECK(run.begin_replay({1}));
}

TEST_CASE("a loss that is found out while the stages are told to end is not another failure") {
  core run(false);
  for (int i = 0; i < 2 * core::most_in_vain; ++i)
    CHECK(run.lost({1}) == effect(core::drop_stages{}));
  CHECK(run.in_vain() == 0);
  CHECK(run.listed({{}, {}}) == effect(core::replace_lost{{1}}));
  CHECK(run.in_vain() == 1);
}
