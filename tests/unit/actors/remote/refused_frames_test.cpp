// Messages that a limit of the link keeps at their sender: whoever sent them is told at once.

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/futures/requester.hpp"
#include "actors/messages/common.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/protocol.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/actors/remote_pipeline.hpp"
#include "tests/unit/two_linear_layers.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using tests::limited_node;
using tests::patience;
using clock = std::chrono::steady_clock;

struct company {
  explicit company(const messages::limits& bounds)
      : near("near", network, types, bounds), far("far", network, types, bounds) {}
  ~company() {
    for (const auto& each : published) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  template <class Behavior>
  caf::actor far_actor(Behavior behavior) {
    published.push_back(far.system.spawn(behavior));
    far.publish("actor", published.back());
    return near.find<caf::actor>(far, "actor");
  }

  messages::loopback_network network;
  actors::message_registry types;
  limited_node near, far;
  std::vector<caf::actor> published;
};

/// Takes tensors and texts, and answers a number with a tensor of so many floats.
caf::behavior echo() {
  return {[](const at::Tensor&) { return 1; }, [](const std::string&) { return 2; },
          [](int count) { return at::zeros({count}); }};
}

constexpr messages::limits small{.header_bytes = 4096, .tensor_bytes = 4000, .text_bytes = 256};

void expect_at_once(clock::time_point begin) {
  const std::chrono::duration<double, std::milli> took = clock::now() - begin;
  CHECK(took < 1s);
}

}  // namespace

TEST_CASE("a request over a limit fails at once and names message, limit and value") {
  company nodes(small);
  const auto target = nodes.far_actor(echo);
  const auto begin = clock::now();

  SECTION("of a requester") {
    actors::requester ask(nodes.near.system,
                          [&](const caf::node_id& id) { return nodes.near.node->name_of(id); });
    const auto answer = error_of(ask.request<int>(target, at::zeros({1001}), patience).get());
    CHECK(answer.code == errc::bad_frame);
    CHECK_THAT(answer.text, ContainsSubstring("a request 'Tensor' to actor ") &&
                                ContainsSubstring("of node 'far': frame not sent: 4004") &&
                                ContainsSubstring("limit tensor_bytes is 4000"));
    CHECK(ask.request<int>(target, at::zeros({1000}), patience).get());
  }
  SECTION("of an actor") {
    caf::scoped_actor self(nodes.near.system);
    std::optional<error> why;
    self->request(target, patience, std::string(300, 'x'))
        .receive([](int) {}, [&](const caf::error& what) { why = actors::from_caf(what); });
    REQUIRE(why);
    CHECK(why->code == errc::bad_frame);
    CHECK_THAT(why->text, ContainsSubstring("message 'string' to actor ") &&
                              ContainsSubstring("300 bytes of text, limit text_bytes is 256"));
  }
  expect_at_once(begin);
}

TEST_CASE("a request before its connection stands fails as well") {
  company nodes(small);
  const auto actor = nodes.far.system.spawn(echo);
  nodes.published.push_back(actor);
  const auto address = nodes.far.node->address_of(caf::actor_cast<caf::strong_actor_ptr>(actor));
  actors::requester ask(nodes.near.system);
  const auto target = caf::actor_cast<caf::actor>(nodes.near.node->resolve(address));
  const auto begin = clock::now();
  const auto answer = error_of(ask.request<int>(target, at::zeros({1001}), patience).get());
  CHECK(answer.code == errc::bad_frame);
  expect_at_once(begin);
}

TEST_CASE("an answer over a limit, or one that cannot be sent at all, is an error at the asker") {
  company nodes(small);
  const auto begin = clock::now();
  actors::requester ask(nodes.near.system);
  SECTION("too large") {
    const auto target = nodes.far_actor(echo);
    const auto answer = ask.request<at::Tensor>(target, 1001, patience).get();
    REQUIRE(!answer);
    CHECK(answer.error().code == errc::bad_frame);
    CHECK_THAT(answer.error().text, ContainsSubstring("the answer 'tensor' to actor ") &&
                                        ContainsSubstring("limit tensor_bytes is 4000"));
  }
  SECTION("of a type that was not added") {
    const auto target = nodes.far_actor(
        []() -> caf::behavior { return {[](int) { return actors::acknowledged{}; }}; });
    const auto answer = error_of(ask.request<actors::acknowledged>(target, 1, patience).get());
    CHECK(answer.code == errc::unknown_message);
  }
  SECTION("an error whose text is too long") {
    const auto target = nodes.far_actor([]() -> caf::behavior {
      return {[](int) -> caf::result<int> {
        return actors::to_caf({errc::bad_data, std::string(1000, 'x')});
      }};
    });
    CHECK(error_of(ask.request<int>(target, 1, patience).get()).code == errc::bad_frame);
  }
  expect_at_once(begin);
}

TEST_CASE("a name that is too long to be looked up is an error at once") {
  company nodes(small);
  nodes.far_actor(echo);
  const auto begin = clock::now();
  const auto found = error_of(nodes.near.node->find("far", std::string(300, 'x'), patience));
  CHECK(found.code == errc::bad_frame);
  expect_at_once(begin);
}

TEST_CASE("the sender of any other message over a limit is told, and ends with the reason") {
  company nodes(small);
  const auto target = nodes.far_actor(echo);
  const auto begin = clock::now();
  caf::scoped_actor self(nodes.near.system);

  SECTION("unless it handles errors") {
    std::promise<error> told;
    const auto sender = nodes.near.system.spawn([&](caf::event_based_actor* me) -> caf::behavior {
      me->set_error_handler([&](const caf::error& why) { told.set_value(actors::from_caf(why)); });
      return {[me, target](int) { me->send(target, at::zeros({1001})); }};
    });
    self->send(sender, 1);
    auto outcome = told.get_future();
    REQUIRE(outcome.wait_for(patience) == std::future_status::ready);
    CHECK(outcome.get().code == errc::bad_frame);
    caf::anon_send_exit(sender, caf::exit_reason::user_shutdown);
  }
  SECTION("and its monitors hear of it") {
    const auto sender = nodes.near.system.spawn([&](caf::event_based_actor* me) -> caf::behavior {
      return {[me, target](int) { me->send(target, at::zeros({1001})); }};
    });
    self->monitor(sender);
    self->send(sender, 1);
    std::optional<error> why;
    self->receive([&](const caf::down_msg& down) { why = actors::from_caf(down.reason); },
                  caf::after(patience) >> [] { FAIL("no down message"); });
    REQUIRE(why);
    CHECK(why->code == errc::bad_frame);
    CHECK_THAT(why->text, ContainsSubstring("message 'tensor' to actor ") &&
                              ContainsSubstring("of node 'far'") &&
                              ContainsSubstring("limit tensor_bytes is 4000"));
  }
  SECTION("also across nodes") {
    // The far one sends back more than fits, and ends: the near one monitors it.
    const auto here = nodes.near.node->address_of(caf::actor_cast<caf::strong_actor_ptr>(self));
    const auto back = caf::actor_cast<caf::actor>(nodes.far.node->resolve(here));
    const auto far = nodes.far_actor([back](caf::event_based_actor* me) -> caf::behavior {
      return {[me, back](int count) { me->send(back, at::zeros({count})); }};
    });
    self->monitor(far);
    self->send(far, 1001);
    std::optional<error> why;
    self->receive([&](const caf::down_msg& down) { why = actors::from_caf(down.reason); },
                  caf::after(patience) >> [] { FAIL("no down message"); });
    REQUIRE(why);
    CHECK_THAT(why->text, ContainsSubstring("limit tensor_bytes is 4000"));
  }
  expect_at_once(begin);
}

namespace {

engine::model two_layers() {
  return tests::two_linear_layers(4, 300, 4);
}

result<actors::step_outcome> train(tests::remote_pipeline& run, std::int64_t samples) {
  return run.stages->train({at::ones({samples, 4}), at::zeros({samples}, at::kLong)}, 1, 0.1);
}

}  // namespace

TEST_CASE("an activation over a limit ends the step at once with its stage and the limit") {
  // An activation has 1,200 bytes a sample.
  tests::remote_pipeline run(two_layers(), 1, {.tensor_bytes = 10'000}, {}, "sgd", "gpipe");
  REQUIRE(train(run, 8));
  const auto begin = clock::now();
  const auto outcome = error_of(train(run, 9));
  CHECK(outcome.code == errc::bad_frame);
  CHECK_THAT(outcome.text, ContainsSubstring("stage-0: message 'activation' to actor ") &&
                               ContainsSubstring("of node 'stage-1'") &&
                               ContainsSubstring("limit tensor_bytes is 10000"));
  CHECK(outcome.text.find('\n') == std::string::npos);
  expect_at_once(begin);
}

TEST_CASE("a batch over a limit ends the step at once, and those after it") {
  tests::remote_pipeline run(two_layers(), 1, {.tensor_bytes = 10'000}, {}, "sgd", "gpipe");
  const auto begin = clock::now();
  for (int step = 0; step < 2; ++step) {
    const auto outcome = train(run, 700);  // 16 bytes a sample
    REQUIRE(!outcome);
    CHECK(outcome.error().code == errc::bad_frame);
    CHECK_THAT(outcome.error().text, ContainsSubstring("message 'activation' to actor ") &&
                                         ContainsSubstring("of node 'stage-0'"));
  }
  expect_at_once(begin);
}
