#include "actors/recovery/stores_core.hpp"

#include <catch2/catch_test_macros.hpp>

#include "actors/recovery/action_record.hpp"
#include "actors/recovery/departed_core.hpp"

using namespace troupe;
using actors::stores_core;
using effects = stores_core::effects;

TEST_CASE("a version is stored when all keepers have it, and each gets one at a time") {
  stores_core core(2, 2);
  CHECK(core.is_stored());
  core.begin();
  CHECK_FALSE(core.is_stored());
  CHECK(core.copied(1) == effects{{{0, 0}, 1}, {{1, 0}, 1}});
  CHECK(core.stored({0, 0}).empty());
  CHECK_FALSE(core.is_stored());
  core.begin();
  CHECK(core.copied(2) == effects{{{0, 0}, 2}});
  CHECK(core.stored({1, 0}) == effects{{{1, 0}, 2}});
  CHECK(core.stored({1, 0}).empty());
  CHECK_FALSE(core.is_stored());
  CHECK(core.stored({0, 0}).empty());
  CHECK(core.is_stored());
}

TEST_CASE("a keeper that is lost for good is waited for no longer, and gets nothing any more") {
  stores_core core(2, 2);
  core.begin();
  static_cast<void>(core.copied(1));
  static_cast<void>(core.stored({0, 0}));
  CHECK_FALSE(core.is_stored());
  core.left(1);
  CHECK_FALSE(core.is_current({1, 0}));
  CHECK(core.is_stored());
  core.begin();
  CHECK(core.copied(2) == effects{{{0, 0}, 2}});
  CHECK_FALSE(core.is_stored());
  CHECK(core.stored({0, 0}).empty());
  CHECK(core.is_stored());
  CHECK(core.is_over(0));
}

TEST_CASE("a new keeper gets the last versions, and answers of the lost one do not count") {
  stores_core core(2, 2);
  for (const std::uint64_t step : {1, 2, 3}) {
    core.begin();
    static_cast<void>(core.copied(step));
    static_cast<void>(core.stored({0, 0}));
    if (step < 3) static_cast<void>(core.stored({1, 0}));
  }
  CHECK(core.is_over(1));
  CHECK_FALSE(core.is_over(2));
  CHECK(core.replaced(1) == effects{{{1, 1}, 2}});
  CHECK_FALSE(core.is_current({1, 0}));
  CHECK(core.stored({1, 0}).empty());
  CHECK_FALSE(core.is_stored());
  CHECK(core.stored({1, 1}) == effects{{{1, 1}, 3}});
  CHECK(core.stored({1, 1}).empty());
  CHECK(core.is_stored());
}

TEST_CASE("a keeper that is replaced before there is a version gets the first one as the others") {
  stores_core core(1, 2);
  CHECK(core.replaced(0).empty());
  core.begin();
  CHECK(core.copied(4) == effects{{{0, 1}, 4}});
}

TEST_CASE("where no keeper is replaced no version is remembered") {
  stores_core core(1);
  core.begin();
  static_cast<void>(core.copied(1));
  CHECK_FALSE(core.is_over(1));
  static_cast<void>(core.stored({0, 0}));
  CHECK(core.is_over(1));
}

TEST_CASE("who was replaced is not listened to any more, and whoever has its place is") {
  actors::departed_core<int> core;
  CHECK_FALSE(core.has_departed(1));
  core.replaced(1);
  core.replaced(3);
  CHECK(core.has_departed(1));
  CHECK_FALSE(core.has_departed(2));
  CHECK(core.has_departed(3));
}

TEST_CASE("an action that a process begins again is known, whichever of its stages does") {
  actors::action_record record;
  const engine::action what{engine::action_kind::forward, {1}};
  CHECK_FALSE(record.note(0, 5, what));
  CHECK_FALSE(record.note(1, 5, what));
  CHECK_FALSE(record.note(0, 6, what));
  CHECK_FALSE(record.note(0, 5, {engine::action_kind::backward, {1}}));
  CHECK(record.note(0, 5, what));
  for (std::uint64_t step = 7; step < 7 + actors::action_record::steps_remembered; ++step)
    static_cast<void>(record.note(0, step, what));
  CHECK_FALSE(record.note(0, 5, what));  // forgotten
}
