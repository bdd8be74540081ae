// Which checkpoints are a run's own, and when another is due.

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <vector>

#include "cluster/recovery/checkpoint_record_core.hpp"

namespace {

using record = troupe::cluster::checkpoint_record_core;
using steps = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("a checkpoint is due at its time or when it is asked for, of whole updates, once") {
  record run(2, 4);
  CHECK(run.last_step() == 4);
  CHECK_FALSE(run.is_due(6, false, false));
  CHECK(run.is_due(6, true, false));
  CHECK(run.is_due(6, false, true));
  CHECK_FALSE(run.is_due(7, true, true));
  CHECK_FALSE(run.is_due(4, true, true));
  run.begin(6, false);
  CHECK(run.under_way() == record::attempt{6, false});
  CHECK_FALSE(run.is_due(6, true, true));
  CHECK(run.is_due(8, true, false));
  CHECK(run.last_step() == 4);
  run.complete();
  CHECK_FALSE(run.under_way().has_value());
  CHECK(run.last_step() == 6);
  CHECK_FALSE(run.is_due(6, true, true));
}

TEST_CASE("one may be whole once its step has been reported") {
  record run(1, 4);
  CHECK_FALSE(run.may_complete());
  run.told(5);
  CHECK_FALSE(run.may_complete());
  run.begin(6, false);
  CHECK_FALSE(run.may_complete());
  run.told(6);
  CHECK(run.may_complete());
  run.told(5);
  CHECK(run.may_complete());
  run.complete();
  run.begin(7, false);
  CHECK_FALSE(run.may_complete());
  run.told(9);
  CHECK(run.may_complete());
  CHECK(run.cut_off());
  CHECK_FALSE(run.may_complete());
  // What was told stays told when the steps are done again.
  run.went_back(4);
  run.begin(9, false);
  CHECK(run.may_complete());
  record resumed(1, 4);
  resumed.begin(4, false);
  CHECK(resumed.may_complete());
}

TEST_CASE("one that was cut off is due again at the next update, for who asked for it") {
  record run(2);
  run.begin(2, true);
  CHECK(run.cut_off());
  CHECK_FALSE(run.under_way().has_value());
  CHECK_FALSE(run.is_due(3, false, false));
  CHECK(run.is_due(2, false, false));
  CHECK(run.is_due(4, false, false));
  run.begin(4, false);
  CHECK(run.under_way() == record::attempt{4, true});
  CHECK_FALSE(run.is_due(6, false, false));  // the one under way may make up for it
  CHECK_FALSE(run.cut_off());
  CHECK(run.is_due(6, false, false));
  run.begin(6, false);
  run.complete();
  CHECK_FALSE(run.is_due(8, false, false));
  run.begin(8, false);
  CHECK(run.under_way() == record::attempt{8, false});
  CHECK(run.cut_off());
}

TEST_CASE("one that could not be written waits for its time") {
  record run;
  run.begin(1, true);
  CHECK(run.cut_off());
  run.begin(2, false);
  run.fail();
  CHECK_FALSE(run.under_way().has_value());
  CHECK_FALSE(run.is_due(3, false, false));
  CHECK(run.last_step() == 0);
  run.begin(3, false);
  CHECK(run.under_way() == record::attempt{3, false});
}

TEST_CASE("only what the run has written is its own, until it goes back behind it") {
  record run(1, 3);
  CHECK(run.own({9, 3}).empty());
  for (const std::uint64_t step : {4, 6, 8}) {
    run.begin(step, false);
    run.complete();
  }
  run.begin(9, false);
  run.fail();
  CHECK(run.own({9, 8, 6, 3}) == steps{8, 6});
  run.went_back(6);
  CHECK(run.own({9, 8, 6, 4, 3}) == steps{6, 4});
  CHECK(run.last_step() == 6);
  CHECK(run.is_due(8, true, false));
  run.went_back(3);
  CHECK(run.own({9, 8, 6, 4, 3}).empty());
  CHECK(run.is_due(4, true, false));
}

TEST_CASE("an evaluation that was reported stays so when the steps are done again") {
  record run(1, 4);
  CHECK_FALSE(run.is_evaluated(4));
  run.evaluated(6);
  run.evaluated(8);
  run.went_back(4);
  CHECK(run.is_evaluated(6));
  CHECK_FALSE(run.is_evaluated(7));
  CHECK(run.is_evaluated(8));
}
