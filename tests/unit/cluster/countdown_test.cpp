#include <catch2/catch_test_macros.hpp>

#include "cluster/membership/countdown_core.hpp"

using namespace std::chrono_literals;
using troupe::cluster::countdown_core;

TEST_CASE("a countdown says every five seconds who is missing, and nothing before") {
  countdown_core countdown(30s);
  CHECK_FALSE(countdown.tick(4999ms, {"stage-0"}));
  CHECK(countdown.tick(5s, {"stage-0", "stage-1"}) == "waiting for stage-0, stage-1: 25 s left");
  CHECK_FALSE(countdown.tick(6s, {"stage-1"}));
  CHECK(countdown.tick(10'400ms, {"stage-1"}) == "waiting for stage-1: 20 s left");
  CHECK_FALSE(countdown.tick(20s, {}));
}

TEST_CASE("a countdown that has run out names who is missing, of many the first") {
  const countdown_core countdown(30s);
  CHECK(countdown.failure({"stage-1"}) == "stage-1 has not joined the run within 30 s");
  CHECK(countdown.failure({"a", "b"}) == "a, b have not joined the run within 30 s");
  CHECK(countdown.failure({"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}) ==
        "a, b, c, d, e, f, g, h and 2 more have not joined the run within 30 s");
}
