#include "actors/remote/remote_core.hpp"

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using actors::remote_core;
using messages::frame;
using messages::frame_kind;

const error reset{errc::peer_lost, "connection reset"};
const remote_core::clock::time_point start{};

remote_core make_core(const std::string& name, const actors::process_identity& where = {}) {
  return {name, name + ":1", where, {}};
}

frame hello_of(const std::string& name, const actors::process_identity& where = {}) {
  auto effects = make_core(name, where).peer_up({99});
  return std::get<remote_core::transmit>(effects.at(0)).what;
}

/// A core that is connected to "b" by peer 1.
remote_core connected_to_b() {
  auto core = make_core("a");
  core.peer_up({1});
  core.frame_arrived({1}, hello_of("b"));
  return core;
}

template <class Effect>
std::vector<Effect> all_of(const remote_core::effects& effects) {
  std::vector<Effect> found;
  for (const auto& each : effects) {
    if (const auto* one = std::get_if<Effect>(&each)) found.push_back(*one);
  }
  return found;
}

template <class Effect>
Effect only(const remote_core::effects& effects) {
  REQUIRE(effects.size() == 1);
  REQUIRE(std::holds_alternative<Effect>(effects[0]));
  return std::get<Effect>(effects[0]);
}

frame asking_for(const std::string& actor, std::uint64_t number) {
  frame out{.kind = frame_kind::lookup, .request_id = number};
  out.body.push_back({"lookup", {{actor}}});
  return out;
}

/// An answer to a lookup: that the actor has this id.
frame found(std::uint64_t number, std::uint64_t actor) {
  frame out{.kind = frame_kind::response, .request_id = number};
  out.body.push_back({"found", {{messages::actor_ref{"b", "b:1", actor}}}});
  return out;
}

}  // namespace

TEST_CASE("A route opens after what waited for the connection, and closes with the node") {
  auto core = make_core("a");
  core.heard_of("b", "b:1");
  CHECK(only<remote_core::connect>(core.send("b", {.request_id = 1})).address == "b:1");
  core.peer_up({1});
  const auto effects = core.frame_arrived({1}, hello_of("b"));
  REQUIRE(effects.size() == 2);
  CHECK(std::get<remote_core::transmit>(effects[0]).what.request_id == 1);
  const auto& route = std::get<remote_core::route_changed>(effects[1]);
  CHECK(route.node == "b");
  CHECK(route.peer == peer_id{1});

  const auto closed = all_of<remote_core::route_changed>(core.peer_down({1}, reset, start));
  REQUIRE(closed.size() == 1);
  CHECK(closed[0].peer == peer_id{0});
  CHECK(core.tick(start, {}, {}).empty());  // and no heartbeat is sent any more
  const auto late = only<remote_core::undelivered>(core.send("b", {.request_id = 2}));
  CHECK(late.what.request_id == 2);
  CHECK(late.why.code == errc::peer_lost);
}

TEST_CASE("A lookup is answered with a published actor's address, and refused by name before") {
  auto core = connected_to_b();
  const auto refused = only<remote_core::refuse>(core.frame_arrived({1}, asking_for("host", 5)));
  CHECK(refused.node == "b");
  CHECK(refused.answer.kind == frame_kind::response);
  CHECK(refused.answer.request_id == 5);
  CHECK(refused.why == error{errc::unknown_target, "node 'a' has published no actor 'host'"});

  core.publish("host", {"a", "a:1", 7});
  const auto answer = only<remote_core::transmit>(core.frame_arrived({1}, asking_for("host", 6)));
  CHECK(answer.what.request_id == 6);
  CHECK(answer.what.body.at(0).fields.at(0) == messages::value{messages::actor_ref{"a", "a:1", 7}});

  const auto is_refused = [&](const frame& malformed) {
    return only<remote_core::refuse>(core.frame_arrived({1}, malformed)).why.code ==
           errc::unknown_target;
  };
  auto malformed = asking_for("host", 7);
  malformed.body[0].fields.clear();
  CHECK(is_refused(malformed));
  malformed = asking_for("host", 8);
  malformed.body.push_back(malformed.body[0]);
  CHECK(is_refused(malformed));
}

TEST_CASE("Only the first answer of the node that was asked ends a lookup") {
  auto core = connected_to_b();
  core.peer_up({2});
  core.frame_arrived({2}, hello_of("c"));
  const auto [number, effects] = core.look_up("b", "host");
  const auto asked = only<remote_core::transmit>(effects);
  CHECK(asked.what.kind == frame_kind::lookup);
  CHECK(asked.what.request_id == number);
  CHECK(asked.what.body == asking_for("host", number).body);
  CHECK(!core.outcome_of(number));

  CHECK(core.frame_arrived({2}, found(number, 3)).empty());
  CHECK(core.frame_arrived({1}, found(number + 1, 3)).empty());
  CHECK(!core.outcome_of(number));
  CHECK(core.frame_arrived({1}, found(number, 4)).empty());
  CHECK(core.frame_arrived({1}, found(number, 5)).empty());
  core.lookup_failed(number, reset);
  const auto outcome = core.outcome_of(number);
  REQUIRE(outcome);
  REQUIRE(*outcome);
  CHECK((*outcome)->body == found(number, 4).body);

  core.forget_lookup(number);
  CHECK(core.frame_arrived({1}, found(number, 6)).empty());
  CHECK(!core.outcome_of(number));
}

TEST_CASE("A lookup of a node that is lost or leaves fails, and of no other") {
  auto core = connected_to_b();
  core.peer_up({2});
  core.frame_arrived({2}, hello_of("c"));
  const auto of_b = core.look_up("b", "host").number;
  const auto of_c = core.look_up("c", "host").number;
  core.peer_down({1}, reset, start);
  REQUIRE(core.outcome_of(of_b));
  CHECK(core.outcome_of(of_b)->error() ==
        error{errc::peer_lost, "node 'b' is gone: connection reset"});
  CHECK(!core.outcome_of(of_c));

  const auto late = core.look_up("b", "host");
  CHECK(late.to_perform.empty());
  REQUIRE(core.outcome_of(late.number));
  CHECK(core.outcome_of(late.number)->error().code == errc::peer_lost);

  core.frame_arrived({2}, {.kind = frame_kind::goodbye});
  const auto too_late = core.look_up("c", "host").number;
  REQUIRE(core.outcome_of(too_late));
  CHECK(core.outcome_of(too_late)->error().code == errc::cancelled);
}

TEST_CASE("Links are broken with the other's node, but for those that ended before") {
  auto core = connected_to_b();
  const auto link = [&](std::uint64_t there, std::uint64_t here) {
    return core.frame_arrived({1}, {.kind = frame_kind::link, .sender = there, .target = here});
  };
  const auto made = only<remote_core::linked>(link(10, 1));
  CHECK(made.node == "b");
  CHECK(made.between == remote_core::remote_link{10, 1});
  link(10, 2);
  link(11, 1);
  link(12, 1);
  link(12, 1);
  CHECK(core.frame_arrived({1}, {.kind = frame_kind::unlink, .sender = 10, .target = 2}).empty());
  const auto ended = only<remote_core::actor_ended>(
      core.frame_arrived({1}, {.kind = frame_kind::down, .sender = 11}));
  CHECK(ended.notice.sender == 11);

  const auto downs = all_of<remote_core::node_down>(core.peer_down({1}, reset, start));
  REQUIRE(downs.size() == 1);
  CHECK(downs[0].broken == std::vector<remote_core::remote_link>{{10, 1}, {12, 1}});
}

TEST_CASE("What comes for an actor is handed on, and a monitor has it watched") {
  auto core = connected_to_b();
  for (const auto kind : {frame_kind::message, frame_kind::request, frame_kind::response})
    CHECK(only<remote_core::received>(core.frame_arrived({1}, {.kind = kind, .target = 4}))
              .what.kind == kind);
  const auto watched =
      only<remote_core::watch>(core.frame_arrived({1}, {.kind = frame_kind::monitor, .target = 4}));
  CHECK(watched.node == "b");
  CHECK(watched.actor == 4);
}

TEST_CASE("Heartbeats carry what is told, and only what is told is handed on") {
  auto core = connected_to_b();
  const std::vector<messages::element> news = {{"progress", {{std::int64_t{3}}}}};
  const auto beat = only<remote_core::transmit>(core.tick(start, {}, news));
  CHECK(beat.what.kind == frame_kind::heartbeat);
  CHECK(beat.what.lane == messages::lane::control);
  CHECK(beat.what.body == news);
  CHECK(only<remote_core::told>(core.frame_arrived({1}, beat.what)).what == news);
  CHECK(core.frame_arrived({1}, {.kind = frame_kind::heartbeat}).empty());
}

TEST_CASE("A peer that greets again is refused") {
  auto core = connected_to_b();
  const auto refused = only<remote_core::close>(core.frame_arrived({1}, hello_of("b")));
  CHECK(refused.peer == peer_id{1});
  CHECK(refused.why.code == errc::bad_frame);
}

TEST_CASE("A silent process of this host is examined, and lost if it has ended") {
  const actors::process_identity here{"host", "network", 1, 1};
  const actors::process_identity there{"host", "network", 2, 1};
  auto core = make_core("a", here);
  core.peer_up({1});
  core.frame_arrived({1}, hello_of("b", there));
  const actors::liveness_settings settings;
  std::vector<remote_core::examine> doubts;
  for (int i = 0; i < settings.suspicion / settings.interval; ++i) {
    CHECK(doubts.empty());
    doubts = all_of<remote_core::examine>(core.tick(start + i * settings.interval, {}, {}));
  }
  REQUIRE(doubts.size() == 1);
  CHECK(doubts[0].node == "b");
  CHECK(doubts[0].process == there);
  const auto downs = all_of<remote_core::node_down>(
      core.examined("b", actors::process_state::gone, start + settings.suspicion));
  REQUIRE(downs.size() == 1);
  CHECK(downs[0].node == "b");
}

TEST_CASE("A silent node of another host is doubted, at each tick until it is lost") {
  const actors::liveness_settings settings;
  auto core = connected_to_b();
  std::int64_t doubts = 0;
  for (std::int64_t i = 0; i < 2 * settings.silence / settings.interval; ++i)
    for (const auto& each :
         all_of<remote_core::doubt>(core.tick(start + i * settings.interval, {}, {}))) {
      CHECK(each.node == "b");
      ++doubts;
    }
  CHECK(doubts == (settings.silence - settings.suspicion) / settings.interval + 1);
}

TEST_CASE("A node that falls silent is lost, unless its frames come another way") {
  const actors::liveness_settings settings;
  const auto ticks = settings.silence / settings.interval + 2;
  for (const std::string way : {"none", "past the core", "through the core"}) {
    CAPTURE(way);
    const bool heard = way != "none";
    auto core = connected_to_b();
    std::vector<remote_core::node_down> downs;
    for (std::int64_t i = 0; i < ticks; ++i) {
      const std::vector<std::string> past_core(way == "past the core" ? 1 : 0, "b");
      if (way == "through the core") core.frame_arrived({1}, {.kind = frame_kind::heartbeat});
      for (auto& each :
           all_of<remote_core::node_down>(core.tick(start + i * settings.interval, past_core, {})))
        downs.push_back(each);
    }
    REQUIRE(downs.size() == (heard ? 0 : 1));
    CHECK(core.lost("b").has_value() == !heard);
  }
}
