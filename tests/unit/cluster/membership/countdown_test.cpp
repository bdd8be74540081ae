#include <catch2/catch_test_macros.hpp>

#include "cluster/membership/countdown_core.hpp"

using namespace std::chrono_literals;
using troupe::cluster::countdown_core;

namespace {

const std::string remedy =
    "; where a stage only takes longer to come, give it more with --join-timeout ([cluster] "
    "join_timeout)";

}  // namespace

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
  CHECK(countdown.failure({"stage-1"}) == "stage-1 has not joined the run within 30 s" + remedy);
  CHECK(countdown.failure({"a", "b"}) == "a, b have not joined the run within 30 s" + remedy);
  CHECK(countdown.failure({"a", "b", "c", "d", "e", "f", "g", "h"}) ==
        "a, b, c, d, e, f, g, h have not joined the run within 30 s" + remedy);
  CHECK(countdown.failure({"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}) ==
        "a, b, c, d, e, f, g, h and 2 more have not joined the run within 30 s" + remedy);
}

TEST_CASE("a countdown says at once that a connection was refused, and at the end too") {
  countdown_core countdown(30s);
  countdown.refused("10.0.0.2:17 does not prove that it has the cluster's secret");
  CHECK(countdown.tick(1s, {"stage-0"}) ==
        "waiting for stage-0: 29 s left; a connection was refused: 10.0.0.2:17 does not prove that "
        "it has the cluster's secret");
  countdown.refused("10.0.0.3:18 did not finish its handshake in time");
  CHECK_FALSE(countdown.tick(2s, {"stage-0"}));  // a crowd of strangers is no flood of lines
  CHECK(countdown.failure({"stage-0"}) ==
        "stage-0 has not joined the run within 30 s; 2 connections were refused, the last one: "
        "10.0.0.3:18 did not finish its handshake in time" +
            remedy);
}
