#include <catch2/catch_test_macros.hpp>
#include <chrono>

#include "cluster/membership/launchers/held_up_core.hpp"

using namespace std::chrono_literals;
using troupe::cluster::held_up_core;

namespace {

const held_up_core::clock::time_point first_asked{};

}  // namespace

TEST_CASE("A killed process is waited for once, however often its end is asked for") {
  held_up_core core(10s, 60s);
  const auto wait = core.asked("stage-1", first_asked);
  CHECK(wait.told == first_asked + 10s);
  CHECK(wait.over == first_asked + 70s);
  CHECK(wait.is_first);
  const auto again = core.asked("stage-1", first_asked + 70s);
  CHECK(again.told == wait.told);
  CHECK(again.over == wait.over);
  CHECK_FALSE(again.is_first);
}

TEST_CASE("Each killed process has a wait of its own, and a new one once it has ended") {
  held_up_core core(10s, 60s);
  static_cast<void>(core.asked("stage-0", first_asked));
  CHECK(core.asked("stage-1", first_asked + 5s).over == first_asked + 75s);
  core.ended("stage-0");
  CHECK(core.asked("stage-0", first_asked + 9s).is_first);
  CHECK_FALSE(core.asked("stage-1", first_asked + 9s).is_first);
}
