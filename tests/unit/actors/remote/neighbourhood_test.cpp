#include "actors/remote/neighbourhood.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace troupe;
using actors::neighbourhood;
using messages::frame;
using messages::frame_kind;

const error reset{errc::peer_lost, "connection reset"};

frame numbered(std::uint64_t number) {
  return {.kind = frame_kind::request, .request_id = number};
}

frame hello_of(const std::string& name) {
  auto effects = neighbourhood(name, name + ":1").peer_up({99});
  return std::get<neighbourhood::transmit>(effects.at(0)).what;
}

/// A core that is connected to "b" by peer 1.
neighbourhood connected_to_b() {
  neighbourhood core("a", "a:1");
  core.peer_up({1});
  core.frame_arrived({1}, hello_of("b"));
  return core;
}

}  // namespace

TEST_CASE("A node says hello to each new peer") {
  neighbourhood core("a", "host:7");
  const auto effects = core.peer_up({1});
  REQUIRE(effects.size() == 1);
  const auto& hello = std::get<neighbourhood::transmit>(effects[0]);
  CHECK(hello.peer == peer_id{1});
  CHECK(hello.what.kind == frame_kind::hello);
  CHECK(core.name_of({1}) == "");
}

TEST_CASE("The first frame connects, and all wait their turn until the hello") {
  neighbourhood core("a", "a:1");
  core.heard_of("b", "b:1");
  const auto first = core.send("b", numbered(1));
  REQUIRE(first.size() == 1);
  CHECK(std::get<neighbourhood::connect>(first[0]).address == "b:1");
  CHECK(core.send("b", numbered(2)).empty());
  CHECK(core.peer_up({1}).size() == 1);
  CHECK(core.send("b", numbered(3)).empty());

  const auto effects = core.frame_arrived({1}, hello_of("b"));
  REQUIRE(effects.size() == 4);
  CHECK(std::get<neighbourhood::node_up>(effects[0]).node == "b");
  for (std::uint64_t i = 1; i <= 3; ++i)
    CHECK(std::get<neighbourhood::transmit>(effects[i]).what.request_id == i);
  CHECK(core.connected("b"));
}

TEST_CASE("A node that listens elsewhere says so in its next hello, and is met where others say") {
  neighbourhood core("b", "b:1");
  core.listens_at("b:2");
  const auto hello = std::get<neighbourhood::transmit>(core.peer_up({1}).at(0)).what;
  neighbourhood other("a", "a:1");
  other.peer_up({1});
  other.frame_arrived({1}, hello);
  CHECK(other.address_of("b") == "b:2");
  other.moved("b", "b:3");
  CHECK(other.address_of("b") == "b:3");
  CHECK(other.connected("b"));
}

TEST_CASE("Frames before the hello, second hellos and malformed ones close the connection") {
  neighbourhood core("a", "a:1");
  core.peer_up({1});
  CHECK(core.frame_arrived({1}, {.kind = frame_kind::heartbeat}).empty());  // overtakes
  auto effects = core.frame_arrived({1}, numbered(1));
  CHECK(std::get<neighbourhood::close>(effects.at(0)).why.code == errc::bad_frame);

  auto greeted = connected_to_b();
  effects = greeted.frame_arrived({1}, hello_of("b"));
  CHECK(std::get<neighbourhood::close>(effects.at(0)).why.code == errc::bad_frame);

  core.peer_up({2});
  effects = core.frame_arrived({2}, {.kind = frame_kind::hello});
  CHECK(std::get<neighbourhood::close>(effects.at(0)).why.code == errc::bad_frame);

  core.peer_up({3});
  effects = core.frame_arrived({3}, hello_of("a"));
  CHECK(std::get<neighbourhood::close>(effects.at(0)).why.code == errc::bad_config);
}

TEST_CASE("A lost node is reported once and what is sent to it afterwards comes back") {
  auto core = connected_to_b();
  auto effects = core.peer_down({1}, reset);
  REQUIRE(effects.size() == 1);
  const auto& down = std::get<neighbourhood::node_down>(effects[0]);
  CHECK(down.node == "b");
  CHECK(down.why == error{errc::peer_lost, "node 'b' is gone: connection reset"});
  CHECK(core.lost("b"));
  CHECK_FALSE(core.connected("b"));
  CHECK_FALSE(core.peer_of("b"));

  effects = core.send("b", numbered(5));
  REQUIRE(effects.size() == 1);
  CHECK(std::get<neighbourhood::undelivered>(effects[0]).what.request_id == 5);
  CHECK(core.peer_down({1}, reset).empty());
}

TEST_CASE("A lost node cannot come back under its name") {
  auto core = connected_to_b();
  core.peer_down({1}, reset);
  core.peer_up({2});
  const auto effects = core.frame_arrived({2}, hello_of("b"));
  CHECK(std::get<neighbourhood::close>(effects.at(0)).why.code == errc::stale);
}

TEST_CASE("Two processes of one name, and one of an unknown name, are told so and not let in") {
  const auto hello_from = [](const std::string& name, std::int64_t pid) {
    auto effects = neighbourhood(name, name + ":1", {"host", "net", pid, 5}).peer_up({99});
    return std::get<neighbourhood::transmit>(effects.at(0)).what;
  };
  neighbourhood core("a", "a:1", {}, [](const actors::greeting& who) -> result<void> {
    if (who.name == "b") return {};
    return fail(errc::bad_config, "no '" + who.name + "' here");
  });
  for (std::uint64_t peer = 1; peer <= 4; ++peer) core.peer_up({peer});
  CHECK(std::holds_alternative<neighbourhood::node_up>(
      core.frame_arrived({1}, hello_from("b", 10)).at(0)));
  CHECK(core.frame_arrived({2}, hello_from("b", 10)).empty());  // its second connection

  auto effects = core.frame_arrived({3}, hello_from("b", 11));
  REQUIRE(effects.size() == 1);
  const auto& taken = std::get<neighbourhood::close>(effects[0]);
  CHECK(taken.peer == peer_id{3});
  CHECK(taken.why.code == errc::bad_config);
  CHECK(taken.why.text.find("the name 'b' is taken: process 10") == 0);
  CHECK(core.peer_down({3}, reset).empty());
  CHECK(core.connected("b"));

  effects = core.frame_arrived({4}, hello_from("c", 12));
  REQUIRE(effects.size() == 1);
  CHECK(std::get<neighbourhood::close>(effects[0]).why.text == "no 'c' here");
  CHECK_FALSE(core.connected("c"));
}

TEST_CASE("Who may join is asked with all that its hello says, and its build is part of that") {
  const actors::process_identity where{"host", "net", 10, 5};
  std::vector<actors::greeting> asked;
  neighbourhood core("a", "a:1", {}, [&](const actors::greeting& who) -> result<void> {
    asked.push_back(who);
    if (who.build == "00ff") return {};
    return fail(errc::bad_config, "'" + who.build + "' is another build");
  });
  const auto answer_to = [&](std::uint64_t peer, neighbourhood other) {
    core.peer_up({peer});
    auto effects = other.peer_up({99});
    effects = core.frame_arrived({peer}, std::get<neighbourhood::transmit>(effects.at(0)).what);
    REQUIRE(effects.size() == 1);
    return effects[0];
  };
  const auto refused = answer_to(1, {"b", "b:1", where, {}, "00fe"});
  CHECK(std::get<neighbourhood::close>(refused).why ==
        error{errc::bad_config, "'00fe' is another build"});
  CHECK_FALSE(core.connected("b"));
  const auto silent = answer_to(2, {"b", "b:1", where});
  CHECK(std::get<neighbourhood::close>(silent).why.text == "'' is another build");
  const auto joined = answer_to(3, {"b", "b:1", where, {}, "00ff"});
  CHECK(std::get<neighbourhood::node_up>(joined).node == "b");
  REQUIRE(asked.size() == 3);
  CHECK(asked[0].name == "b");
  CHECK(asked[0].address == "b:1");
  CHECK(asked[0].process == where);
}

TEST_CASE("A node that hangs is cut off, told why, and not listened to any more") {
  auto core = connected_to_b();
  auto effects = core.lose("b", {errc::timed_out, "it was silent"});
  REQUIRE(effects.size() == 2);
  CHECK(std::get<neighbourhood::node_down>(effects[0]).why ==
        error{errc::peer_lost, "node 'b' is gone: it was silent"});
  const auto& end = std::get<neighbourhood::close>(effects[1]);
  CHECK(end.peer == peer_id{1});
  CHECK(end.why == error{errc::timed_out, "node 'a' has cut node 'b' off: it was silent"});
  CHECK_FALSE(end.is_leaving);

  CHECK(core.lose("b", reset).empty());
  CHECK(core.frame_arrived({1}, numbered(1)).empty());
  CHECK(!core.alone());
  CHECK(core.peer_down({1}, reset).empty());
  CHECK(core.alone());
}

TEST_CASE("A node that hangs while it leaves has left") {
  auto core = connected_to_b();
  core.frame_arrived({1}, {.kind = frame_kind::goodbye});
  const auto effects = core.lose("b", {errc::timed_out, "it was silent"});
  CHECK(std::get<neighbourhood::node_down>(effects.at(0)).why.code == errc::cancelled);
  CHECK(std::get<neighbourhood::close>(effects.at(1)).why.code == errc::timed_out);
}

TEST_CASE("A hello says where the process runs") {
  const actors::process_identity where{"host", "network", 42, 7};
  auto effects = neighbourhood("b", "b:1", where).peer_up({99});
  neighbourhood core("a", "a:1");
  core.peer_up({1});
  effects = core.frame_arrived({1}, std::get<neighbourhood::transmit>(effects.at(0)).what);
  CHECK(std::get<neighbourhood::node_up>(effects.at(0)).process == where);
}

TEST_CASE("A node that says goodbye has left, not been lost") {
  auto core = connected_to_b();
  CHECK(core.frame_arrived({1}, {.kind = frame_kind::goodbye}).empty());
  const auto effects = core.peer_down({1}, reset);
  CHECK(std::get<neighbourhood::node_down>(effects.at(0)).why.code == errc::cancelled);
}

TEST_CASE("A node that cannot be reached gives every waiting frame back") {
  neighbourhood core("a", "a:1");
  core.heard_of("b", "b:1");
  core.send("b", numbered(1));
  core.send("b", numbered(2));
  const auto effects = core.connect_failed("b", {errc::timed_out, "no answer"});
  REQUIRE(effects.size() == 3);
  CHECK(std::get<neighbourhood::node_down>(effects[0]).why.code == errc::peer_lost);
  CHECK(std::get<neighbourhood::undelivered>(effects[1]).what.request_id == 1);
  CHECK(std::get<neighbourhood::undelivered>(effects[2]).what.request_id == 2);
}

TEST_CASE("Of two connections to one node the first is used, and both deliver") {
  auto core = connected_to_b();
  core.peer_up({2});
  CHECK(core.frame_arrived({2}, hello_of("b")).empty());
  CHECK(core.peer_of("b") == peer_id{1});
  CHECK(std::get<neighbourhood::transmit>(core.send("b", numbered(1)).at(0)).peer == peer_id{1});
  CHECK(std::get<neighbourhood::received>(core.frame_arrived({2}, numbered(2)).at(0)).node == "b");
}

TEST_CASE("Leaving says goodbye to every peer and closes it") {
  auto core = connected_to_b();
  const auto effects = core.leave();
  REQUIRE(effects.size() == 2);
  CHECK(std::get<neighbourhood::transmit>(effects[0]).what.kind == frame_kind::goodbye);
  CHECK(std::get<neighbourhood::close>(effects[1]).why.code == errc::cancelled);
  CHECK(std::get<neighbourhood::close>(effects[1]).is_leaving);
  CHECK(!core.alone());
  core.peer_down({1}, reset);
  CHECK(core.alone());
}

TEST_CASE("Who breaks off says no goodbye, and nothing more when it ends") {
  auto core = connected_to_b();
  const auto effects = core.break_off({errc::handler_failed, "its host has ended"});
  REQUIRE(effects.size() == 1);
  CHECK(std::get<neighbourhood::close>(effects[0]).why ==
        error{errc::handler_failed, "its host has ended"});
  CHECK(std::get<neighbourhood::close>(effects[0]).is_leaving);
  CHECK(core.leave().empty());
  core.peer_down({1}, reset);
  CHECK(core.alone());
}

TEST_CASE("Control frames that overtake the hello come after it, a few and without tensors") {
  neighbourhood core("a", "a:1");
  core.peer_up({1});
  auto urgent = numbered(1);
  urgent.lane = messages::lane::control;
  CHECK(core.frame_arrived({1}, urgent).empty());
  const auto effects = core.frame_arrived({1}, hello_of("b"));
  REQUIRE(effects.size() == 2);
  CHECK(std::get<neighbourhood::node_up>(effects[0]).node == "b");
  CHECK(std::get<neighbourhood::received>(effects[1]).what.request_id == 1);

  core.peer_up({2});
  urgent.tensors.emplace_back();
  CHECK(std::holds_alternative<neighbourhood::close>(core.frame_arrived({2}, urgent).at(0)));
  core.peer_up({3});
  urgent.tensors.clear();
  for (int i = 0; i < 64; ++i) REQUIRE(core.frame_arrived({3}, urgent).empty());
  CHECK(std::holds_alternative<neighbourhood::close>(core.frame_arrived({3}, urgent).at(0)));
  CHECK(core.peer_down({3}, reset).empty());
  core.peer_up({3});
  CHECK(core.frame_arrived({3}, hello_of("c")).size() == 1);  // with nothing from before
}

TEST_CASE("That a connection is made may be known after its hello, or after its end") {
  auto core = connected_to_b();
  CHECK(core.connected_to("b", {1}).empty());
  CHECK(core.connected_to("c", {2}).empty());
  core.peer_up({2});
  CHECK(core.peer_down({2}, reset).empty());
  const auto effects = core.peer_down({1}, reset);
  REQUIRE(effects.size() == 1);
  CHECK(std::get<neighbourhood::node_down>(effects[0]).node == "b");
}

TEST_CASE("A node that is connected already, or was lost, is not lost by a connection that fails") {
  auto core = connected_to_b();
  CHECK(core.connect_failed("b", {errc::timed_out, "no answer"}).empty());
  CHECK(core.connected("b"));
  CHECK(core.peer_down({1}, reset).size() == 1);
  CHECK(core.connect_failed("b", {errc::timed_out, "no answer"}).empty());
}

TEST_CASE("A connection that ends before the hello gives every waiting frame back") {
  neighbourhood core("a", "a:1");
  core.heard_of("b", "b:1");
  core.send("b", numbered(1));
  core.peer_up({1});
  CHECK(core.connected_to("b", {1}).empty());
  const auto effects = core.peer_down({1}, reset);
  REQUIRE(effects.size() == 2);
  CHECK(std::get<neighbourhood::node_down>(effects[0]).node == "b");
  CHECK(std::get<neighbourhood::undelivered>(effects[1]).what.request_id == 1);
}

TEST_CASE("An address where another node answers gives the waiting frames back") {
  neighbourhood core("a", "a:1");
  core.heard_of("b", "c:1");
  core.send("b", numbered(1));
  core.peer_up({1});
  core.connected_to("b", {1});
  const auto effects = core.frame_arrived({1}, hello_of("c"));
  REQUIRE(effects.size() == 3);
  CHECK(std::get<neighbourhood::node_down>(effects[0]).node == "b");
  CHECK(std::get<neighbourhood::undelivered>(effects[1]).what.request_id == 1);
  CHECK(std::get<neighbourhood::node_up>(effects[2]).node == "c");
}

TEST_CASE("A node that is lost on one of two connections is closed on the other and unheard") {
  auto core = connected_to_b();
  core.peer_up({2});
  core.frame_arrived({2}, hello_of("b"));
  const auto effects = core.peer_down({1}, reset);
  REQUIRE(effects.size() == 2);
  CHECK(std::get<neighbourhood::node_down>(effects[0]).node == "b");
  CHECK(std::get<neighbourhood::close>(effects[1]).peer == peer_id{2});
  CHECK(core.frame_arrived({2}, numbered(1)).empty());
  CHECK(core.peer_down({2}, reset).empty());
}

TEST_CASE("A node that leaves is heard on each of its connections to the end") {
  auto core = connected_to_b();
  core.peer_up({2});
  core.frame_arrived({2}, hello_of("b"));
  core.frame_arrived({1}, {.kind = frame_kind::goodbye});
  CHECK(std::holds_alternative<neighbourhood::undelivered>(core.send("b", numbered(1)).at(0)));
  CHECK(core.peer_down({1}, reset).empty());
  CHECK(
      std::holds_alternative<neighbourhood::received>(core.frame_arrived({2}, numbered(2)).at(0)));
  core.frame_arrived({2}, {.kind = frame_kind::goodbye});
  const auto effects = core.peer_down({2}, reset);
  CHECK(std::get<neighbourhood::node_down>(effects.at(0)).why.code == errc::cancelled);
}

TEST_CASE("A node that leaves does not break off one connection when another is closed") {
  auto core = connected_to_b();
  core.peer_up({2});
  core.frame_arrived({2}, hello_of("b"));
  core.leave();
  for (const auto& effect : core.peer_down({1}, reset))
    CHECK_FALSE(std::holds_alternative<neighbourhood::close>(effect));
}

TEST_CASE("A node that leaves greets nobody any more") {
  auto core = connected_to_b();
  core.leave();
  const auto effects = core.peer_up({2});
  REQUIRE(effects.size() == 1);
  CHECK(std::get<neighbourhood::close>(effects[0]).why.code == errc::cancelled);
  CHECK(std::get<neighbourhood::close>(effects[0]).is_leaving);
}
