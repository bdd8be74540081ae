// What a program finds out about its messages when it compiles: each predicate is also asked of
// declarations that are wrong.
#include <caf/message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <string>
#include <typeinfo>

#include "actors/messages/checks.hpp"
#include "actors/messages/stage.hpp"
#include "actors/wire/message_registry.hpp"
#include "engine/schedule/generators.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/actors/no_directory.hpp"

namespace troupe::tests {

struct asked {
  static constexpr auto declared = actors::travels("asked", messages::lane::control);
  std::string text;

  static void fields(auto& self, auto& f) { f(self.text); }
};

struct answered {
  static constexpr auto declared = actors::travels("answered");
};

struct namesake {
  static constexpr auto declared = actors::travels("asked");
};

struct at_home {
  static constexpr auto declared = actors::stays_here;
};

struct also_at_home {
  static constexpr auto declared = actors::stays_here;
};

struct undeclared {};

}  // namespace troupe::tests

namespace {

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::tests;

using answering = caf::typed_actor<caf::replies_to<asked>::with<answered>, caf::reacts_to<at_home>>;
using listening = caf::typed_actor<caf::reacts_to<also_at_home>>;
using both = interface_list<answering, listening>;

using asking = message_list<asked, answered>;
using staying = message_list<at_home, also_at_home>;
using all = join_lists<asking, staying>;

static_assert(declared_message<asked> && declared_message<at_home> &&
              !declared_message<undeclared>);
static_assert(caf::allowed_unsafe_message_type<asked>::value);
static_assert(!caf::allowed_unsafe_message_type<undeclared>::value);

static_assert(are_distinct(all{}), "two that stay may both be without a name");
static_assert(!are_distinct(message_list<asked, answered, asked>{}));
static_assert(!are_distinct(message_list<asked, namesake>{}));

static_assert(are_listed(both{}, all{}));
static_assert(!are_listed(both{}, message_list<answered, at_home, also_at_home>{}), "not taken");
static_assert(!are_listed(both{}, message_list<asked, at_home, also_at_home>{}), "not answered");
static_assert(!are_listed(both{}, message_list<asked, answered, at_home>{}), "the second actor's");

static_assert(are_used(both{}, all{}));
static_assert(!are_used(both{}, join_lists<all, message_list<namesake>>{}));
static_assert(!are_used(interface_list<answering>{}, all{}));

}  // namespace

TEST_CASE("a list's messages travel under their names and on their lanes, those that stay do not") {
  message_registry types;
  types.add(all{});
  no_directory nobody;
  messages::frame frame;
  REQUIRE(types.encode(caf::make_message(asked{"who"}), frame, nobody));
  REQUIRE(frame.body.size() == 1);
  CHECK(frame.body.front().type == "asked");
  CHECK(frame.lane == messages::lane::control);
  CHECK(types.decode(frame, nobody).value().get_as<asked>(0).text == "who");

  messages::frame another;
  REQUIRE(types.encode(caf::make_message(answered{}), another, nobody));
  CHECK(another.lane == messages::lane::data);
  REQUIRE(another.body.size() == 1);
  CHECK(another.body.front().fields.empty());
  CHECK(types.decode(another, nobody).value().match_elements<answered>());
  another.body.front().fields.push_back({std::int64_t{1}});
  CHECK(error_of(types.decode(another, nobody)).code == errc::bad_frame);

  messages::frame none;
  const auto kept = error_of(types.encode(caf::make_message(at_home{}), none, nobody));
  CHECK(kept.code == errc::unknown_message);
}

TEST_CASE("CAF holds, matches and copies a message as it does a message of its own") {
  const auto sent = caf::make_message(asked{"who"});
  REQUIRE(sent.size() == 1);
  CHECK(sent.match_elements<asked>());
  CHECK(!sent.match_elements<answered>());
  CHECK(sent.type(0).second != nullptr);
  CHECK(*sent.type(0).second == typeid(asked));
  CHECK(to_string(sent) == "(<unprintable>)");

  auto changed = sent;
  changed.get_mutable_as<asked>(0).text = "what";
  CHECK(sent.get_as<asked>(0).text == "who");
  CHECK(changed.get_as<asked>(0).text == "what");

  const auto element = changed.content().copy(0);
  CHECK(static_cast<const asked*>(element->get())->text == "what");
  CHECK(element->type() == sent.type(0));
}

TEST_CASE("a stage's plan travels beside the header, and one that is malformed does not arrive") {
  message_registry types;
  types.add(stage_messages{});
  no_directory nobody;
  const announce_plan told{.number = 3,
                           .kind = engine::step_kind::training,
                           .microbatches = 4000,
                           .chunks = 2,
                           .steps = engine::interleaved_1f1b(2, 4000, 2).stages[1]};
  messages::frame frame;
  REQUIRE(types.encode(caf::make_message(told), frame, nobody));
  REQUIRE(frame.tensors.size() == 1);
  CHECK(frame.tensors.front().bytes.bytes == told.steps.actions.size() * sizeof(std::int32_t));
  CHECK(types.decode(frame, nobody).value().get_as<announce_plan>(0).steps == told.steps);

  auto* const numbers = reinterpret_cast<std::int32_t*>(frame.tensors.front().bytes.data);
  numbers[7] = -1;
  const auto refused = error_of(types.decode(frame, nobody));
  CHECK(refused.text.find("action 7 of a stage's plan is none: -1") != std::string::npos);
  frame.tensors.front().descriptor.type = messages::dtype::f32;
  CHECK(!types.decode(frame, nobody));
}
