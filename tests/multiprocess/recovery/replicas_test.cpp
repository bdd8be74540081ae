// Replicas of a pipeline that lose one stage of one of them.

#include <catch2/catch_test_macros.hpp>
#include <map>
#include <string>

#include "tests/multiprocess/recovery/disturbed_run.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests::recovery;

/// Over each link, two replicas of two stages lose each stage of each of them.
void check_each_lost(const tests::words& more) {
  for (const auto& [link, accumulate] : std::map<std::string, int>{{"shm", 1}, {"tcp", 2}}) {
    INFO(link << ", an update every " << accumulate << " steps");
    const auto run = tests::with({"--stages", "2", "--replicas", "2", "--link", link}, more);
    const auto outcome = check_run(in_microbatches(4, training(run, 12, accumulate)),
                                   {{2, {.stage = "stage-0 of replica 1"}},
                                    {4, {.stage = "stage-1 of replica 0"}},
                                    {7, {.stage = "stage-0 of replica 0"}},
                                    {9, {.stage = "stage-1 of replica 1"}}},
                                   sequel::replayed);
    CHECK_THAT(outcome.err, ContainsSubstring("stage-0 of replica 1 is replayed from step ") &&
                                ContainsSubstring("stage-1 of replica 0 is replayed from step "));
  }
}

}  // namespace

TEST_CASE("Whichever stage of whichever replica is lost, only that one is replayed", "[untimed]") {
  check_each_lost({});
}

TEST_CASE("A stage of replicas is replayed with a dynamic loss scale and uneven shares",
          "[untimed]") {
  check_run(
      in_microbatches(4, training({"--stages", "1", "--replicas", "2", "--logical-replicas", "4",
                                   "--loss-scale", "dynamic", "--loss-scale-interval", "3"})),
      {{3, {.stage = "stage-0 of replica 1"}}, {7, {.stage = "stage-0 of replica 0"}}},
      sequel::replayed);
  check_run(in_microbatches(4, training({"--stages", "1", "--replicas", "3", "--loss-scale",
                                         "dynamic", "--loss-scale-interval", "3"},
                                        10, 1)),
            {{2, {.stage = "stage-0 of replica 2"}}, {4, {.stage = "stage-0 of replica 0"}}},
            sequel::replayed);
}

TEST_CASE("Stages of two replicas that are lost together are replayed together", "[untimed]") {
  check_run(training({"--stages", "2", "--replicas", "2"}),
            {{5, {.stage = "stage-0 of replica 0", .with = {"stage-0 of replica 1"}}}},
            sequel::replayed);
}

TEST_CASE("A stage whose replicas share out the optimizer's state is replayed", "[untimed]") {
  check_each_lost({"--zero", "1"});
}

TEST_CASE("A stage of three replicas that share out the optimizer's state is replayed with a scale",
          "[untimed]") {
  check_run(in_microbatches(4, training({"--stages", "1", "--replicas", "3", "--zero", "1",
                                         "--loss-scale", "dynamic", "--loss-scale-interval", "3"},
                                        10, 1)),
            {{3, {.stage = "stage-0 of replica 2"}}, {6, {.stage = "stage-0 of replica 0"}}},
            sequel::replayed);
}

TEST_CASE("Stages of two replicas that share out the optimizer's state are replayed together",
          "[untimed]") {
  check_run(training({"--stages", "2", "--replicas", "2", "--zero", "1"}),
            {{5, {.stage = "stage-0 of replica 0", .with = {"stage-0 of replica 1"}}}},
            sequel::replayed);
}

TEST_CASE("Replicas whose batch norms are synchronized survive the loss of a stage", "[untimed]") {
  check_run(training({"--stages", "2", "--replicas", "2", "--batch-norm", "sync"}),
            {{3, {.stage = "stage-0 of replica 1"}}, {7, {.stage = "stage-1 of replica 0"}}},
            sequel::returned);
}

TEST_CASE("A stage of one replica that is lost in an evaluation is replayed", "[untimed]") {
  check_evaluation(evaluating({"--stages", "2", "--replicas", "2", "--schedule", "zb-h1"}),
                   {.stage = "stage-1 of replica 0"});
  check_evaluation(evaluating({"--stages", "1", "--replicas", "2", "--zero", "1"}),
                   {.stage = "stage-0 of replica 1"});
}
