// Where a trainer goes on from what a lost one has left.

#include <catch2/catch_test_macros.hpp>
#include <cstdint>

#include "cluster/recovery/left_versions_core.hpp"

using troupe::cluster::last_left;

TEST_CASE("a trainer goes on behind the last step with a note and a version of each stage") {
  CHECK(last_left({{4, "0-8 "}, {5, "0-8 "}, {6, "0-8 "}}, "0-8 ", 2, {{4, 5, 6}, {3, 4, 5}}) == 5);
  CHECK(last_left({{6, "0-8 "}, {4, "0-8 "}}, "0-8 ", 2, {{4, 5, 6}, {4, 5, 6}}) == 6);
  CHECK(last_left({{4, "0-8 "}}, "0-8 ", 2, {{4, 5, 6}, {4, 5}}) == 4);
}

TEST_CASE(
    "without a note, or without a version of one stage, it goes on from nothing that is left") {
  CHECK_FALSE(last_left({}, "0-8 ", 2, {{4, 5}, {4, 5}}));
  CHECK_FALSE(last_left({{3, "0-8 "}}, "0-8 ", 2, {{4, 5}, {4, 5}}));
  CHECK_FALSE(last_left({{4, "0-8 "}, {5, "0-8 "}}, "0-8 ", 2, {{4, 5}, {}}));
}

TEST_CASE("nor from what a checkpoint has as well, or what is of a model that was cut otherwise") {
  CHECK_FALSE(last_left({{4, "0-8 "}, {5, "0-8 "}}, "0-8 ", 5, {{4, 5}, {4, 5}}));
  CHECK(last_left({{4, "0-8 "}, {5, "0-8 "}}, "0-8 ", 4, {{4, 5}, {4, 5}}) == 5);
  CHECK(last_left({{4, "0-8 "}, {5, "0-7 "}}, "0-8 ", 2, {{4, 5}, {4, 5}}) == 4);
  CHECK_FALSE(last_left({{5, "0-7 "}}, "0-8 ", 2, {{4, 5}, {4, 5}}));
}
