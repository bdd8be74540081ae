// What is said of a node that is gone.

#include <catch2/catch_test_macros.hpp>

#include "actors/remote/told_loss.hpp"
#include "cluster/membership/stage_node.hpp"

using troupe::actors::loss_told_in;
using troupe::cluster::words_on_lost_trainer;

TEST_CASE("a loss is told from its words, with the connection that ended") {
  const auto ended = loss_told_in(
      "a step failed: node 'stage-1' is gone: peer 10.0.0.2:53121 is gone: it ended", "stage-1");
  REQUIRE(ended);
  CHECK(ended->connection == "10.0.0.2:53121");
  CHECK(ended->reason == "it ended");
  const auto silent = loss_told_in("node 'stage-1' is gone: it was silent for 0.8 s", "stage-1");
  REQUIRE(silent);
  CHECK(silent->connection.empty());
  CHECK(silent->reason == "it was silent for 0.8 s");
  CHECK_FALSE(loss_told_in("node 'stage-10' is gone: it was silent", "stage-1"));
  CHECK_FALSE(loss_told_in("stage-1 is gone", "stage-1"));
}

TEST_CASE(
    "who has joined by hand is told that the trainer is gone, what that means and what to do") {
  const auto told = [](const std::string& reason) {
    return words_on_lost_trainer("stage-1", "10.0.0.1:4711", "node 'trainer' is gone: " + reason);
  };
  CHECK(told("peer 10.0.0.1:39552 is gone: it has ended") ==
        "stage-1: the trainer at 10.0.0.1:4711 is gone (it has ended), and this process ends with "
        "it; see there why, and join again when the run has been started again");
  CHECK(told("node 'trainer' has cut node 'stage-1' off: it hangs") ==
        "stage-1: the trainer at 10.0.0.1:4711 has cut this process off: it hangs; see what the "
        "trainer says of it");
  CHECK(told("peer 7 is gone: node 'trainer' has cut node 'stage-1' off: it hangs") ==
        told("node 'trainer' has cut node 'stage-1' off: it hangs"));
}
