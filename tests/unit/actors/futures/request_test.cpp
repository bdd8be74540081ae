// Requests whose answers are futures: to actors of this process, and over the loopback link.

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/neg.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/futures/combine.hpp"
#include "actors/futures/requester.hpp"
#include "actors/remote/functions.hpp"
#include "actors/remote/node.hpp"
#include "actors/system.hpp"
#include "messages/link/loopback/loopback.hpp"
#include "tests/refusal.hpp"

namespace troupe::tests {

struct question {
  std::int64_t number = 0;

  static void fields(auto& self, auto& f) { f(self.number); }
};

}  // namespace troupe::tests

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::tests::question)

namespace {

using namespace troupe;
using tests::question;
using namespace std::chrono_literals;

constexpr auto longest = 20s;

/// Answers numbers with their double, text with nothing, `true` never, and throws at doubles.
caf::behavior answerer(caf::event_based_actor* self) {
  self->set_exception_handler([](const std::exception_ptr&) { return caf::sec::runtime_error; });
  return {
      [](const question& asked) { return 2 * asked.number; },
      [](const std::string& text) -> caf::result<void> {
        if (text.empty()) return {};
        return actors::to_caf({errc::bad_data, text});
      },
      [self](bool) { return self->make_response_promise<std::int64_t>(); },
      [](double) -> std::int64_t { throw std::runtime_error("thrown"); },
      [self](float) { self->quit(caf::exit_reason::user_shutdown); },
  };
}

bool contains(const error& why, const std::string& text) {
  return why.text.find(text) != std::string::npos;
}

struct partner {
  partner(const std::string& name, const messages::loopback_network& network,
          const actors::message_registry& types)
      : system(config) {
    auto started = actors::node::start(
        system, types, {.name = name, .on_node_down = {}},
        [network](auto on) { return messages::make_loopback_link(network, std::move(on)); });
    REQUIRE(started);
    node = std::move(*started);
    ask = std::make_unique<actors::requester>(
        system, [this](const caf::node_id& id) { return node->name_of(id); });
  }

  actors::system_config config;
  caf::actor_system system;
  std::unique_ptr<actors::node> node;
  std::unique_ptr<actors::requester> ask;
};

/// The same tests against an actor of this process and one of another.
struct setting {
  explicit setting(bool is_remote) : remote(is_remote) {
    types.add<question>("question");
    near.emplace("near", network, types);
    far.emplace("far", network, types);
    auto& home = remote ? *far : *near;
    actor = home.system.spawn(answerer);
    target = actor;
    if (!remote) return;
    home.node->publish("answerer", caf::actor_cast<caf::strong_actor_ptr>(actor));
    REQUIRE(near->node->join(far->node->address(), longest) == "far");
    const auto found = near->node->find("far", "answerer", longest);
    REQUIRE(found);
    target = caf::actor_cast<caf::actor>(*found);
  }
  ~setting() {
    caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
    actor = nullptr;
  }

  template <class T, class M>
  [[nodiscard]] actors::future<T> ask(M message, std::chrono::nanoseconds deadline = longest) {
    return near->ask->request<T>(target, std::move(message), deadline);
  }

  bool remote;
  messages::loopback_network network;
  actors::message_registry types;
  std::optional<partner> near;
  std::optional<partner> far;
  caf::actor actor;   // where it lives
  caf::actor target;  // the handle at the near node
};

void for_both(void (*check)(setting&)) {
  for (const bool remote : {false, true}) {
    INFO((remote ? "remote" : "local"));
    setting at(remote);
    check(at);
  }
}

}  // namespace

TEST_CASE("A request's future yields the answer") {
  for_both([](setting& at) {
    CHECK(at.ask<std::int64_t>(question{21}).get(longest) == 42);
    CHECK(at.ask<void>(std::string()).get(longest).has_value());
    const auto text =
        at.ask<std::int64_t>(question{1}).then([](std::int64_t x) { return std::to_string(x); });
    CHECK(text.get(longest) == "2");
  });
}

TEST_CASE("Many requests are outstanding at once and each gets its own answer") {
  for_both([](setting& at) {
    std::vector<actors::future<std::int64_t>> answers;
    for (std::int64_t i = 0; i < 5'000; ++i) answers.push_back(at.ask<std::int64_t>(question{i}));
    const auto values = actors::all(answers).get(longest);
    REQUIRE(values);
    for (std::int64_t i = 0; i < 5'000; ++i)
      REQUIRE((*values)[static_cast<std::size_t>(i)] == 2 * i);
  });
}

TEST_CASE("An actor's own error comes as it is") {
  for_both([](setting& at) {
    CHECK(at.ask<void>(std::string("no such file")).get(longest).error() ==
          error{errc::bad_data, "no such file"});
  });
}

TEST_CASE("A deadline that passes names the target and the message, and a late answer is dropped") {
  for_both([](setting& at) {
    const auto id = std::to_string(at.target.id());
    const auto late = at.ask<std::int64_t>(true, 20ms);
    const auto outcome = error_of(late.get(longest));
    CHECK(outcome.code == errc::timed_out);
    CHECK(contains(outcome, "'bool'"));
    CHECK(contains(outcome, "actor " + id));
    if (at.remote) CHECK(contains(outcome, "node 'far'"));
  });
}

TEST_CASE("An answer that comes after the deadline or a cancel changes nothing") {
  for_both([](setting& at) {
    std::promise<caf::response_promise> held;
    auto& home = at.remote ? *at.far : *at.near;
    const auto slow = home.system.spawn([&held](caf::event_based_actor* self) -> caf::behavior {
      return {[self, &held](const question&) {
        auto owed = self->make_response_promise();
        held.set_value(owed);
        return owed;
      }};
    });
    auto handle = slow;
    if (at.remote) {
      const auto address = at.far->node->address_of(caf::actor_cast<caf::strong_actor_ptr>(slow));
      handle = caf::actor_cast<caf::actor>(at.near->node->resolve(address));
    }
    const auto given_up = at.near->ask->request<std::int64_t>(handle, question{1}, longest);
    auto owed = held.get_future().get();
    given_up.cancel();
    CHECK(given_up.get().error().code == errc::cancelled);
    owed.deliver(std::int64_t{5});
    // The next answer on the same way comes after the late one.
    CHECK(at.ask<std::int64_t>(question{4}).get(longest) == 8);
    CHECK(given_up.get().error().code == errc::cancelled);
    caf::anon_send_exit(slow, caf::exit_reason::user_shutdown);
  });
}

TEST_CASE("A message nobody handles, and an answer of another type, are unknown_message") {
  for_both([](setting& at) {
    const auto unhandled = at.ask<std::int64_t>(std::uint64_t{1}).get(longest);
    CHECK(unhandled.error().code == errc::unknown_message);
    const auto other = at.ask<std::string>(question{1}).get(longest);
    CHECK(other.error().code == errc::unknown_message);
    CHECK(contains(other.error(), "'question'"));
  });
}

TEST_CASE("An exception in a handler is handler_failed and says of whom") {
  for_both([](setting& at) {
    const auto id = std::to_string(at.target.id());
    const auto waiting = at.ask<std::int64_t>(true);
    const auto outcome = error_of(at.ask<std::int64_t>(1.5).get(longest));
    CHECK(outcome.code == errc::handler_failed);
    CHECK(contains(outcome, "actor " + id));
    CHECK(waiting.get(longest).error().code == errc::handler_failed);
  });
}

TEST_CASE("What an ended actor owes, and later requests to it, are unknown_target") {
  for_both([](setting& at) {
    std::vector<actors::future<std::int64_t>> owed;
    for (int i = 0; i < 100; ++i) owed.push_back(at.ask<std::int64_t>(true));
    caf::anon_send(at.actor, 1.0F);
    for (const auto& each : owed) CHECK(each.get(longest).error().code == errc::unknown_target);
    CHECK(at.ask<std::int64_t>(question{1}).get(longest).error().code == errc::unknown_target);
    const caf::actor nobody;
    CHECK(at.near->ask->request<void>(nobody, true, longest).get(longest).error().code ==
          errc::unknown_target);
  });
}

TEST_CASE("Requests to an actor that never existed fail by name") {
  setting at(true);
  const auto nobody =
      caf::actor_cast<caf::actor>(at.near->node->resolve({"far", at.far->node->address(), 424242}));
  const auto outcome = at.near->ask->request<void>(nobody, question{1}, longest).get(longest);
  CHECK(outcome.error().code == errc::unknown_target);
  CHECK(contains(outcome.error(), "424242"));
}

TEST_CASE("Outstanding requests fail when the node leaves, and later ones at once") {
  setting at(true);
  const auto waiting = at.ask<std::int64_t>(true);
  CHECK(at.ask<std::int64_t>(question{1}).get(longest) == 2);  // the other has arrived too
  caf::anon_send_exit(at.actor, caf::exit_reason::kill);
  at.far->ask.reset();
  at.far->node.reset();
  CHECK(!waiting.get(longest));
  const auto later = error_of(at.ask<std::int64_t>(question{1}).get(longest));
  CHECK(contains(later, "far"));
}

TEST_CASE("A requester that ends fails what is outstanding") {
  for_both([](setting& at) {
    const auto waiting = at.ask<std::int64_t>(true);
    at.near->ask.reset();
    CHECK(waiting.get(longest).error().code == errc::cancelled);
  });
}

TEST_CASE("A requester that ends leaves those of its actor system alone, and what actors ask") {
  for_both([](setting& at) {
    caf::scoped_actor self(at.near->system);
    auto asked = self->request(at.target, longest, question{1});
    auto other = std::make_unique<actors::requester>(at.near->system);
    const auto waiting = at.ask<std::int64_t>(true);
    const auto given_up = other->request<std::int64_t>(at.target, true, longest);
    other.reset();
    CHECK(given_up.get(longest).error().code == errc::cancelled);
    CHECK(at.ask<std::int64_t>(question{1}).get(longest) == 2);
    CHECK(!waiting.ready());
    std::int64_t answer = 0;
    asked.receive([&](std::int64_t value) { answer = value; }, [](const caf::error&) {});
    CHECK(answer == 2);
    at.near->ask.reset();
    CHECK(waiting.get(longest).error().code == errc::cancelled);
  });
}

TEST_CASE("A node forks registered functions on another, tensors included") {
  setting at(true);
  actors::pool work({.threads = 1});
  actors::function_registry functions;
  functions.add("negate", [](const at::Tensor& x) { return at::neg(x); });
  functions.add("add", [](std::int64_t x, std::int64_t y) { return x + y; });
  functions.add("fail", [](const std::string& text) -> void { throw std::runtime_error(text); });
  const auto host = actors::function_host::make(at.far->system, functions, work);
  at.far->node->publish(actors::function_host_name, host);
  const auto far = actors::remote_pool::at(*at.near->node, "far", *at.near->ask, longest);
  REQUIRE(far);
  const auto x = at::arange(6);
  const auto negated = actors::fork_on<at::Tensor>(*far, "negate", x);
  const auto sum = actors::fork_on<std::int64_t>(*far, "add", std::int64_t{40}, std::int64_t{2});
  CHECK(sum.get(longest) == 42);
  CHECK(at::equal(*negated.get(longest), at::neg(x)));
  CHECK(actors::fork_on<void>(*far, "fail", std::string("why")).get(longest).error() ==
        error{errc::handler_failed, "why"});
  CHECK(actors::fork_on<void>(*far, "nothing").get(longest).error().code == errc::unknown_target);
  CHECK(actors::fork_on<void>(*far, "add", true).get(longest).error().code ==
        errc::unknown_message);
  at.far->node.reset();
}

TEST_CASE("Requests race with the end of their actor, and none is left without an outcome") {
  setting at(false);
  for (int round = 0; round < 50; ++round) {
    const auto mortal = at.near->system.spawn(answerer);
    std::vector<actors::future<std::int64_t>> owed;
    std::thread killer([&] { caf::anon_send_exit(mortal, caf::exit_reason::user_shutdown); });
    for (int i = 0; i < 50; ++i)
      owed.push_back(at.near->ask->request<std::int64_t>(mortal, i % 2 == 0, longest));
    killer.join();
    for (const auto& each : owed) {
      REQUIRE(error_of(each.get(longest)).code == errc::unknown_target);
    }
  }
}
