// Which work of stages has thrown before.

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <string>

#include "cluster/recovery/throws_core.hpp"

using troupe::cluster::throws_core;

TEST_CASE("work that throws again is told with the reason of its first throw") {
  throws_core throws;
  CHECK_FALSE(throws.threw("stage-1: F3 of step 7", "no memory"));
  CHECK(throws.threw("stage-1: F3 of step 7", "a shape") == "no memory");
  CHECK(throws.threw("stage-1: F3 of step 7", "no memory") == "no memory");
}

TEST_CASE("other work, and that of another stage or step, throws for the first time") {
  throws_core throws;
  for (const std::string work :
       {"stage-1: F3 of step 7", "stage-1: F2 of step 7", "stage-1: B3 of step 7",
        "stage-1: F3 of step 8", "stage-0: F3 of step 7", "stage-1: the update of step 7",
        "stage-1: F3 of the evaluation after step 7"}) {
    INFO(work);
    CHECK_FALSE(throws.threw(work, "no memory"));
  }
  CHECK(throws.threw("stage-1: F3 of step 7", "no memory"));
}

TEST_CASE("the last throws are remembered") {
  throws_core throws;
  const auto work = [](std::size_t step) { return "stage-1: F3 of step " + std::to_string(step); };
  for (std::size_t step = 0; step <= throws_core::most_remembered; ++step)
    CHECK_FALSE(throws.threw(work(step), "no memory"));
  CHECK(throws.threw(work(1), "no memory"));
  CHECK(throws.threw(work(throws_core::most_remembered), "no memory"));
  CHECK_FALSE(throws.threw(work(0), "no memory"));
}
