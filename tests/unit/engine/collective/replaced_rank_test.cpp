// A rank of an all-reduce that is lost: another process takes its place and does its steps again.
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/collective/all_reduce_core.hpp"

using namespace troupe;
using namespace troupe::engine;

namespace {

step_key at_step(std::uint64_t step) {
  return {epoch_id{0}, step_id{step}};
}

/// Rank 0 of some, whose ranks can be replaced.
all_reduce_core replaceable(std::uint32_t ranks, std::vector<bucket> buckets,
                            std::size_t steps_again = 2) {
  return {0,
          ranks,
          std::move(buckets),
          all_reduce_core::usual_in_flight_bytes,
          bucket_way::parts,
          steps_again};
}

/// One own bucket, and one of the other of two ranks.
all_reduce_core one_of_two(std::size_t steps_again = 2) {
  return replaceable(2, {{0, {1}, 8}, {1, {0}, 8}}, steps_again);
}

void do_step(all_reduce_core& core, const step_key& step) {
  REQUIRE(core.complete(step));
  REQUIRE(core.part_arrived(step, 0, 1));
  REQUIRE(core.own_added(step, 0));
  REQUIRE(core.sum_arrived(step, 1, 1));
  REQUIRE(core.rest_arrived(step, 1).value() == all_reduce_effects{all_reduced{step}});
}

bool is_stale(const result<all_reduce_effects>& effects) {
  return !effects && effects.error().code == errc::stale;
}

}  // namespace

TEST_CASE("a rank that does a step again which is over gets the sum for its part, and that alone") {
  auto core = one_of_two();
  do_step(core, at_step(1));
  core.start_over(1, at_step(1));
  CHECK(core.is_repeat(at_step(1), 0, 1));
  CHECK(core.is_repeat(at_step(1), 1, 1));
  CHECK(core.is_repeat(at_step(1), core.rest_of_step(), 1));
  CHECK(core.part_arrived(at_step(1), 0, 1).value() ==
        all_reduce_effects{send_sum{at_step(1), 0, 1}});
  CHECK(core.sum_arrived(at_step(1), 1, 1).value().empty());
  CHECK(core.rest_arrived(at_step(1), 1).value().empty());
  // Each of them once.
  CHECK_FALSE(core.is_repeat(at_step(1), 0, 1));
  CHECK(is_stale(core.part_arrived(at_step(1), 0, 1)));
  CHECK(is_stale(core.sum_arrived(at_step(1), 1, 1)));
  CHECK(is_stale(core.rest_arrived(at_step(1), 1)));
}

TEST_CASE("what a lost rank had not sent of an open step comes from the one in its place") {
  auto core = one_of_two();
  REQUIRE(core.complete(at_step(1)));
  core.start_over(1, at_step(1));
  CHECK_FALSE(core.is_repeat(at_step(1), 0, 1));
  CHECK(core.part_arrived(at_step(1), 0, 1).value() ==
        all_reduce_effects{add_parts{at_step(1), 0}});
  CHECK(core.own_added(at_step(1), 0).value() == all_reduce_effects{send_sum{at_step(1), 0}});
  CHECK(core.sum_arrived(at_step(1), 1, 1).value().empty());
  CHECK(core.rest_arrived(at_step(1), 1).value() == all_reduce_effects{all_reduced{at_step(1)}});
}

TEST_CASE("what a lost rank had sent of an open step stays, and is not used twice") {
  auto core = one_of_two();
  REQUIRE(core.complete(at_step(1)));
  REQUIRE(core.rest_arrived(at_step(1), 1));
  REQUIRE(core.part_arrived(at_step(1), 0, 1).value() ==
          all_reduce_effects{add_parts{at_step(1), 0}});
  REQUIRE(core.sum_arrived(at_step(1), 1, 1));
  core.start_over(1, at_step(1));
  CHECK(core.rest_arrived(at_step(1), 1).value().empty());
  CHECK(core.part_arrived(at_step(1), 0, 1).value().empty());  // its sum is on its way
  CHECK(core.own_added(at_step(1), 0).value() ==
        all_reduce_effects{send_sum{at_step(1), 0}, all_reduced{at_step(1)}});
  CHECK(core.sum_arrived(at_step(1), 1, 1).value().empty());
}

TEST_CASE("a sum goes to a rank that does the step again only after its part has come again") {
  auto core = replaceable(3, {{0, {0}, 8}});
  REQUIRE(core.part_arrived(at_step(1), 0, 1));
  REQUIRE(core.part_arrived(at_step(1), 0, 2));
  REQUIRE(core.complete(at_step(1)));
  core.start_over(2, at_step(1));
  CHECK(core.own_added(at_step(1), 0).value() == all_reduce_effects{send_sum{at_step(1), 0, 1}});
  CHECK(core.part_arrived(at_step(1), 0, 2).value() ==
        all_reduce_effects{send_sum{at_step(1), 0, 2}});
}

TEST_CASE("a step may be over before the part of a rank comes again that waits for its sum") {
  auto core = one_of_two();
  REQUIRE(core.complete(at_step(1)));
  REQUIRE(core.part_arrived(at_step(1), 0, 1));
  REQUIRE(core.sum_arrived(at_step(1), 1, 1));
  REQUIRE(core.rest_arrived(at_step(1), 1));
  core.start_over(1, at_step(1));
  CHECK(core.own_added(at_step(1), 0).value() == all_reduce_effects{all_reduced{at_step(1)}});
  CHECK(core.part_arrived(at_step(1), 0, 1).value() ==
        all_reduce_effects{send_sum{at_step(1), 0, 1}});
}

TEST_CASE("steps before those that are done again, and forgotten ones, do not come again") {
  auto core = one_of_two();
  for (std::uint64_t step = 1; step <= 3; ++step) do_step(core, at_step(step));
  core.start_over(1, at_step(2));
  CHECK_FALSE(core.is_repeat(at_step(1), 0, 1));
  CHECK(core.is_repeat(at_step(2), 0, 1));
  CHECK(core.is_repeat(at_step(3), 0, 1));
  // One more takes its place, behind a later version.
  core.start_over(1, at_step(3));
  CHECK_FALSE(core.is_repeat(at_step(2), 0, 1));
  CHECK(core.is_repeat(at_step(3), 0, 1));
  core.forget_before(at_step(4));
  core.start_over(1, at_step(3));
  CHECK_FALSE(core.is_repeat(at_step(3), 0, 1));
}

TEST_CASE("what comes again may come after the step was forgotten") {
  auto core = one_of_two();
  do_step(core, at_step(1));
  core.start_over(1, at_step(1));
  core.forget_before(at_step(2));
  CHECK(core.rest_arrived(at_step(1), 1).value().empty());
}

TEST_CASE("a rank that does several steps again is sent their parts before it comes to them") {
  auto core = one_of_two(3);
  for (std::uint64_t step = 1; step <= 3; ++step) CHECK(core.part_arrived(at_step(step), 0, 1));
  CHECK_FALSE(core.part_arrived(at_step(4), 0, 1));
}

TEST_CASE("where no rank is replaced, no step that is over is remembered") {
  auto core = one_of_two(0);
  do_step(core, at_step(1));
  core.start_over(1, at_step(1));
  CHECK_FALSE(core.is_repeat(at_step(1), 0, 1));
}
