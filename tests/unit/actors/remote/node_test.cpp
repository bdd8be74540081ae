// Two nodes in one process over the loopback link: a remote actor behaves as a local one.

#include "actors/remote/node.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/protocol.hpp"
#include "actors/system.hpp"
#include "messages/link/loopback/loopback.hpp"
#include "tests/unit/heard_stderr.hpp"
#include "tests/unit/hold_up.hpp"

namespace troupe::tests {

/// One of each kind of member that can travel.
struct everything {
  bool flag = false;
  std::int32_t small = 0;
  std::uint64_t large = 0;
  double real = 0;
  std::string text;
  step_id step;
  at::Tensor tensor;
  at::Tensor nothing;
  std::optional<std::string> absent;
  std::optional<at::Tensor> present;
  std::vector<std::int64_t> numbers;
  std::map<std::string, double> options;
  caf::actor actor;

  static void fields(auto& self, auto& f) {
    f(self.flag, self.small, self.large, self.real, self.text, self.step, self.tensor, self.nothing,
      self.absent, self.present, self.numbers, self.options, self.actor);
  }
};

struct unregistered {};

}  // namespace troupe::tests

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::tests::everything)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::tests::unregistered)

namespace {

using namespace troupe;
using tests::everything;
using tests::unregistered;
using namespace std::chrono_literals;

constexpr auto patience = 10s;

/// A process of its own, but for sharing ours.
struct member {
  member(const std::string& name, const messages::loopback_network& network,
         const actors::message_registry& types)
      : system(config) {
    actors::node_settings settings{.name = name, .on_node_down = [this](auto&, auto& why) {
                                     if (!std::exchange(down, true)) downs.set_value(why);
                                   }};
    auto started = actors::node::start(system, types, settings, [network](auto events) {
      return messages::make_loopback_link(network, std::move(events));
    });
    REQUIRE(started);
    node = std::move(*started);
  }

  caf::actor publish(const std::string& name, caf::actor actor) {
    node->publish(name, caf::actor_cast<caf::strong_actor_ptr>(actor));
    return actor;
  }

  actors::system_config config;
  bool down = false;
  std::promise<error> downs;  // the first
  caf::actor_system system;
  std::unique_ptr<actors::node> node;
};

struct pair_of_nodes {
  pair_of_nodes() {
    types.add<everything>("everything");
    near.emplace("near", network, types);
    far.emplace("far", network, types);
  }
  ~pair_of_nodes() {
    for (const auto& actor : published) caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  }

  /// Spawns at the far node and returns the near node's handle to it.
  template <class Behavior>
  caf::actor far_actor(Behavior behavior) {
    published.push_back(far->publish("actor", far->system.spawn(behavior)));
    REQUIRE(near->node->join(far->node->address(), patience) == "far");
    const auto found = near->node->find("far", "actor", patience);
    REQUIRE(found);
    return caf::actor_cast<caf::actor>(*found);
  }

  /// Requests at the near node and returns the error answered, if one is.
  template <class... Ts>
  std::optional<error> failure_of(const caf::actor& to, std::chrono::seconds timeout, Ts... what) {
    std::optional<error> failure;
    caf::scoped_actor self(near->system);
    self->request(to, timeout, std::move(what)...)
        .receive([](int) {}, [&](const caf::error& why) { failure = actors::from_caf(why); });
    return failure;
  }

  /// Returns when what the near node was to tell before is told: the second question is asked after
  /// the link's thread has brought the first answer.
  void flush(const caf::actor& adds) {
    for (int i = 0; i < 2; ++i) REQUIRE(!failure_of(adds, 10s, 1, 2));
  }

  messages::loopback_network network;
  actors::message_registry types;
  std::optional<member> near;
  std::optional<member> far;
  std::vector<caf::actor> published;
};

caf::behavior adder() {
  return {[](int x, int y) { return x + y; },
          [](const std::string& text) -> caf::result<int> {
            return actors::to_caf({errc::bad_config, "no number: " + text});
          }};
}

/// Adds, and says when the last reference to it is gone.
class short_lived final : public caf::event_based_actor {
 public:
  short_lived(caf::actor_config& with, std::promise<void>& gone)
      : caf::event_based_actor(with), gone_(gone) {}
  ~short_lived() override { gone_.set_value(); }

  caf::behavior make_behavior() override { return adder(); }

 private:
  std::promise<void>& gone_;
};

}  // namespace

TEST_CASE("A request to a remote actor is answered") {
  pair_of_nodes nodes;
  const auto actor = nodes.far_actor(adder);
  caf::scoped_actor self(nodes.near->system);
  int sum = 0;
  self->request(actor, patience, 40, 2)
      .receive([&](int answer) { sum = answer; },
               [](const caf::error& why) { FAIL(actors::from_caf(why).text); });
  CHECK(sum == 42);
}

TEST_CASE("An error answer arrives with its code and text") {
  pair_of_nodes nodes;
  const auto actor = nodes.far_actor(adder);
  const auto failure = nodes.failure_of(actor, patience, std::string("x"));
  REQUIRE(failure);
  CHECK(failure->code == errc::bad_config);
  CHECK(failure->text == "no number: x");
}

TEST_CASE("Every kind of member travels, and tensors by reference") {
  pair_of_nodes nodes;
  const auto actor = nodes.far_actor([]() -> caf::behavior {
    return {[](everything in) {
      in.large += 1;
      return in;
    }};
  });
  const auto tensor = at::arange(12).view({3, 4}).t();  // [4, 3], strides 1, 4
  const everything sent{.flag = true,
                        .small = -5,
                        .large = ~std::uint64_t{0} - 1,
                        .real = 0.1,
                        .text = "text",
                        .step = {9},
                        .tensor = tensor,
                        .nothing = {},
                        .absent = {},
                        .present = at::arange(2),
                        .numbers = {1, -2},
                        .options = {{"lr", 0.5}},
                        .actor = actor};
  caf::scoped_actor self(nodes.near->system);
  std::optional<everything> got;
  self->request(actor, patience, sent)
      .receive([&](const everything& answer) { got = answer; },
               [](const caf::error& why) { FAIL(actors::from_caf(why).text); });
  REQUIRE(got);
  CHECK(got->flag);
  CHECK(got->small == -5);
  CHECK(got->large == ~std::uint64_t{0});
  CHECK(got->real == 0.1);
  CHECK(got->text == "text");
  CHECK(got->step == step_id{9});
  CHECK(got->tensor.data_ptr() == tensor.data_ptr());
  CHECK(got->tensor.strides() == tensor.strides());
  CHECK(!got->nothing.defined());
  CHECK(!got->absent);
  CHECK(at::equal(*got->present, at::arange(2)));
  CHECK(got->numbers == std::vector<std::int64_t>{1, -2});
  CHECK(got->options == std::map<std::string, double>{{"lr", 0.5}});
  CHECK(got->actor == actor);
}

TEST_CASE("A message type that was not added, or that nobody handles, is an error answer") {
  pair_of_nodes nodes;
  const auto actor = nodes.far_actor(adder);
  CHECK(nodes.failure_of(actor, patience, unregistered{})->code == errc::unknown_message);
  CHECK(nodes.failure_of(actor, patience, 1.5)->code == errc::unknown_message);
}

TEST_CASE("A request to an actor that never existed or has ended is an error answer") {
  pair_of_nodes nodes;
  nodes.far_actor(adder);
  const auto nobody = caf::actor_cast<caf::actor>(
      nodes.near->node->resolve({"far", nodes.far->node->address(), 424242}));
  CHECK(nodes.failure_of(nobody, patience, 1, 2)->code == errc::unknown_target);
  CHECK(nodes.near->node->find("far", "nobody", patience).error().code == errc::unknown_target);
}

TEST_CASE(
    "A message to an actor that has ended is dropped, with a warning that says whose it was") {
  pair_of_nodes nodes;
  nodes.far_actor(adder);
  const auto nobody = caf::actor_cast<caf::actor>(
      nodes.near->node->resolve({"far", nodes.far->node->address(), 424242}));
  const tests::heard_stderr heard;
  caf::anon_send(nobody, 1, 2);
  CHECK(heard.says(
      "warning: far: dropped a message from near: there is no actor 424242 on node 'far'"));
}

TEST_CASE("Who speaks before it has said hello is cut off with a warning") {
  pair_of_nodes nodes;
  std::promise<error> told;
  messages::link_events events;
  events.on_peer_down = [&](peer_id, const error& why) { told.set_value(why); };
  auto stranger = messages::make_loopback_link(nodes.network, std::move(events));
  REQUIRE(stranger);
  std::promise<peer_id> connected;
  (*stranger)->connect(nodes.near->node->address(), patience,
                       [&](const result<peer_id>& peer) { connected.set_value(*peer); });
  const tests::heard_stderr heard;
  (*stranger)->send(connected.get_future().get(), {.kind = messages::frame_kind::request}, {});
  CHECK(heard.says("warning: near: closing a connection: a peer spoke before it said hello"));
  auto why = told.get_future();
  REQUIRE(why.wait_for(patience) == std::future_status::ready);
  CHECK(why.get().text.find("a peer spoke before it said hello") != std::string::npos);
}

TEST_CASE("A node lets go of an actor that others have sent to when that has ended") {
  std::promise<void> gone;
  pair_of_nodes nodes;
  const auto remote = nodes.far_actor(adder);  // which joins the two
  auto actor = nodes.far->publish("short-lived", nodes.far->system.spawn<short_lived>(gone));
  const auto found = nodes.near->node->find("far", "short-lived", patience);
  REQUIRE(found);
  const auto handle = caf::actor_cast<caf::actor>(*found);
  CHECK(!nodes.failure_of(handle, patience, 1, 2));
  caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  actor = nullptr;
  CHECK(gone.get_future().wait_for(patience) == std::future_status::ready);
  CHECK(nodes.failure_of(handle, patience, 1, 2)->code == errc::unknown_target);
  CHECK(!nodes.failure_of(remote, patience, 1, 2));
}

TEST_CASE("A monitor hears of a remote actor's end") {
  pair_of_nodes nodes;
  const auto actor = nodes.far_actor(adder);
  caf::scoped_actor self(nodes.near->system);
  self->monitor(actor);
  caf::anon_send_exit(nodes.published.front(), caf::exit_reason::user_shutdown);
  bool heard = false;
  self->receive([&](const caf::down_msg&) { heard = true; },
                caf::after(patience) >> [] { FAIL("no down message"); });
  CHECK(heard);
}

TEST_CASE("A monitor hears that a remote actor ended as it meant to") {
  pair_of_nodes nodes;
  const auto actor = nodes.far_actor([](caf::event_based_actor* self) -> caf::behavior {
    return {[self](int, int) {
      self->quit();
      return 0;
    }};
  });
  caf::scoped_actor self(nodes.near->system);
  self->monitor(actor);
  self->send(actor, 1, 2);
  bool normal = false;
  self->receive([&](const caf::down_msg& down) { normal = !down.reason; },
                caf::after(patience) >> [] { FAIL("no down message"); });
  CHECK(normal);
}

TEST_CASE("Links between nodes end both actors, whichever ends first and however") {
  pair_of_nodes nodes;
  const auto far = nodes.far_actor(adder);
  std::promise<void> linked;
  const auto near = nodes.near->system.spawn([&](caf::event_based_actor* self) -> caf::behavior {
    self->link_to(far);
    linked.set_value();
    return {[self](const std::string&) { self->quit(caf::exit_reason::user_shutdown); }};
  });
  linked.get_future().wait();
  nodes.flush(far);
  caf::scoped_actor here(nodes.near->system);
  caf::scoped_actor there(nodes.far->system);
  here->monitor(near);
  there->monitor(nodes.published.front());

  SECTION("the far one") {
    caf::anon_send_exit(nodes.published.front(), caf::exit_reason::user_shutdown);
  }
  SECTION("the near one") {
    here->send(near, std::string("end"));
  }
  SECTION("the near one's node") {
    nodes.near->node.reset();
    caf::anon_send_exit(near, caf::exit_reason::user_shutdown);
  }
  for (auto* self : {&here, &there}) {
    bool ended = false;
    (*self)->receive([&](const caf::down_msg& down) { ended = static_cast<bool>(down.reason); },
                     caf::after(patience) >> [] { FAIL("no down message"); });
    CHECK(ended);
  }
}

TEST_CASE("An actor that traps exits hears of a linked remote one once, and not after unlinking") {
  pair_of_nodes nodes;
  std::promise<int> heard;
  std::promise<void> linked, exited;
  const auto trapper = nodes.far->system.spawn([&](caf::event_based_actor* self) -> caf::behavior {
    auto exits = std::make_shared<int>(0);
    self->set_exit_handler([exits, &exited](const caf::exit_msg&) {
      if (++*exits == 1) exited.set_value();
    });
    return {[self, exits, &heard](const std::string&) {
      heard.set_value(*exits);
      self->quit();
    }};
  });
  const auto far = nodes.far_actor([](caf::event_based_actor*) -> caf::behavior {
    return {[](int x, int y) { return x + y; }};
  });
  nodes.far->publish("trapper", trapper);
  const auto found = nodes.near->node->find("far", "trapper", patience);
  REQUIRE(found);
  const auto remote = caf::actor_cast<caf::actor>(*found);
  const bool unlinks = GENERATE(false, true);
  const auto near = nodes.near->system.spawn([&](caf::event_based_actor* self) -> caf::behavior {
    self->link_to(remote);
    if (unlinks) self->unlink_from(remote);
    linked.set_value();
    return {[self](int) { self->quit(caf::exit_reason::user_shutdown); }};
  });
  linked.get_future().wait();
  nodes.flush(far);
  caf::scoped_actor here(nodes.near->system);
  here->monitor(near);
  here->send(near, 1);
  here->receive([](const caf::down_msg&) {}, caf::after(patience) >> [] { FAIL("no down"); });
  // An actor that ends tells who watches it before those that it is linked to.
  if (!unlinks) REQUIRE(exited.get_future().wait_for(patience) == std::future_status::ready);
  nodes.flush(far);
  here->send(remote, std::string("how many?"));
  auto count = heard.get_future();
  REQUIRE(count.wait_for(patience) == std::future_status::ready);
  CHECK(count.get() == (unlinks ? 0 : 1));
}

TEST_CASE("A node that says hello and nothing more is lost within a second") {
  // A peer that is no node: it never beats.
  pair_of_nodes nodes;
  std::promise<error> told;
  messages::link_events events;
  events.on_peer_down = [&](peer_id, const error& why) { told.set_value(why); };
  auto mute = messages::make_loopback_link(nodes.network, std::move(events));
  REQUIRE(mute);
  std::promise<peer_id> connected;
  (*mute)->connect(nodes.near->node->address(), patience,
                   [&](const result<peer_id>& peer) { connected.set_value(*peer); });
  const auto peer = connected.get_future().get();
  auto hello = actors::neighbourhood("mute", "nowhere:1").peer_up(peer);
  (*mute)->send(peer, std::get<actors::neighbourhood::transmit>(hello.at(0)).what, {});
  REQUIRE(nodes.near->node->wait_for("mute", patience));

  const tests::hold_up held;
  const auto begin = std::chrono::steady_clock::now();
  const auto actor =
      caf::actor_cast<caf::actor>(nodes.near->node->resolve({"mute", "nowhere:1", 1}));
  const auto failure = nodes.failure_of(actor, patience, 1, 2);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  WARN("a silent node was noticed after " << took.count() << " ms");
  CHECK(took < 1s + held.over(tests::threads_of_a_loss));
  REQUIRE(failure);
  CHECK(failure->code == errc::peer_lost);
  // Longer than 0.8 s where the tick that counted those came late: nobody is lost at such a one.
  CHECK_THAT(failure->text,
             Catch::Matchers::Matches(
                 "node 'mute' is gone: it was silent for (0[.][89]|[12][.][0-9]) s.*"));
  const auto why = told.get_future().get();
  CHECK(why.text.find("node 'near' has cut node 'mute' off") != std::string::npos);
}

TEST_CASE("Nodes with nothing to say to each other stay connected") {
  pair_of_nodes nodes;
  const auto actor = nodes.far_actor(adder);
  const auto idle = nodes.near->downs.get_future();
  CHECK(idle.wait_for(2s) == std::future_status::timeout);
  CHECK(!nodes.failure_of(actor, patience, 1, 2));
}

TEST_CASE("Outstanding requests fail when the node is gone, and later ones at once") {
  pair_of_nodes nodes;
  std::promise<void> asked;
  const auto actor = nodes.far_actor([&asked](caf::event_based_actor* self) -> caf::behavior {
    return {[self, &asked](int, int) {
      asked.set_value();
      return self->make_response_promise<int>();  // answered never
    }};
  });
  auto failure =
      std::async(std::launch::async, [&] { return nodes.failure_of(actor, patience, 1, 2); });
  asked.get_future().wait();
  caf::anon_send_exit(nodes.published.front(), caf::exit_reason::user_shutdown);
  nodes.published.clear();
  nodes.far->node.reset();
  REQUIRE(failure.get());
  CHECK(nodes.near->downs.get_future().get().code == errc::cancelled);
  CHECK(nodes.failure_of(actor, patience, 1, 2).has_value());
}

TEST_CASE("A handle passed on by a third party reaches its actor, also where that has moved") {
  const bool moves = GENERATE(false, true);
  pair_of_nodes nodes;
  member third("third", nodes.network, nodes.types);
  const auto actor = nodes.far_actor(adder);
  if (moves) {
    const auto before = nodes.far->node->address();
    const auto after = nodes.far->node->listen_at("elsewhere:1");
    REQUIRE(after);
    CHECK(nodes.far->node->address() == *after);
    CHECK_FALSE(third.node->join(before, 1s));
    nodes.near->node->note_address("far", *after);
  }
  const auto address = nodes.near->node->address_of(caf::actor_cast<caf::strong_actor_ptr>(actor));
  CHECK(address.node == "far");
  CHECK(address.address == nodes.far->node->address());
  const auto handle = caf::actor_cast<caf::actor>(third.node->resolve(address));
  caf::scoped_actor self(third.system);
  int sum = 0;
  self->request(handle, patience, 1, 2)
      .receive([&](int answer) { sum = answer; },
               [](const caf::error& why) { FAIL(actors::from_caf(why).text); });
  CHECK(sum == 3);
}
