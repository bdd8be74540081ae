// What is said of a node that is gone.

#include <catch2/catch_test_macros.hpp>
#include <string>

#include "actors/remote/told_loss.hpp"
#include "cluster/membership/stage_node.hpp"

using troupe::actors::greeting;
using troupe::actors::loss_told_in;
using troupe::cluster::words_on_lost_trainer;
using troupe::cluster::words_on_other_build;
using troupe::cluster::words_on_refusal;

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

TEST_CASE("a host that falls silent is said with what to look at there") {
  using troupe::cluster::words_on_lost_node;
  CHECK(words_on_lost_node("stage-1 on node beta (10.0.0.2)", "it was silent for 0.8 s") ==
        "stage-1 on node beta (10.0.0.2) is gone: it was silent for 0.8 s; see whether its host is "
        "up and reached from here (ip link, ping) and nothing has stopped it there, and start the "
        "run again");
  CHECK(words_on_lost_node("stage-1 on node beta (10.0.0.2)", "it has ended") ==
        "stage-1 on node beta (10.0.0.2) is gone: it has ended");
  CHECK(words_on_lost_node("stage-1", "it was silent for 0.8 s") ==
        "stage-1 is gone: it was silent for 0.8 s");
}

TEST_CASE("who is refused is told by whom and why, whether it was greeted first or not") {
  const std::string told =
      "stage-1: the trainer at 10.0.0.1:4711 refuses this process: the name 'stage-1' is taken";
  for (const std::string why :
       {"the node at 10.0.0.1:4711 refuses this one: peer 10.0.0.1:4711 closed the link: the name "
        "'stage-1' is taken",
        "node 'trainer' is gone: peer 10.0.0.1:4711 closed the link: the name 'stage-1' is taken",
        "the node at 10.0.0.1:4711 refuses this one: the name 'stage-1' is taken",
        "the name 'stage-1' is taken"})
    CHECK(words_on_refusal("stage-1", "10.0.0.1:4711", why) == told);
}

TEST_CASE("another build is refused with its node, its host, both builds and what to do") {
  const auto told = [](const std::string& address, const std::string& build) {
    return words_on_other_build(greeting{"stage-1", address, {}, build},
                                {"home", "/bin/train", "00ff"});
  };
  const std::string rest =
      " and not 00ff as the trainer's; install the trainer's program there, and join with it "
      "(--program of troupe join): /bin/train on home";
  CHECK(told("10.0.0.2:4712", "00fe") ==
        "stage-1 on 10.0.0.2 is another build of the program, 00fe" + rest);
  CHECK(told("[fd00::2]:4712+unix:/tmp/door@ab", "00fe") ==
        "stage-1 on fd00::2 is another build of the program, 00fe" + rest);
  CHECK(told("unix:/tmp/door", "") ==
        "stage-1 on home is another build of the program, which it does not name," + rest);
}
