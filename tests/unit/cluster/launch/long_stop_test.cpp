#include <catch2/catch_test_macros.hpp>
#include <chrono>

#include "cluster/launch/long_stop_core.hpp"

using namespace std::chrono_literals;
using troupe::cluster::long_stop_core;

namespace {

/// Looks at a process of which a stop of a second is too long.
struct observer {
  long_stop_core core{1s};
  long_stop_core::clock::time_point now{100h};

  bool look(bool is_stopped, std::chrono::milliseconds later) {
    now += later;
    return core.look(is_stopped, now);
  }
};

}  // namespace

TEST_CASE("a process is stopped for too long once looks have seen it so for all of that time") {
  observer sees;
  CHECK_FALSE(sees.look(false, 100ms));
  CHECK_FALSE(sees.look(true, 100ms));  // perhaps since just now
  for (int i = 1; i < 10; ++i) CHECK_FALSE(sees.look(true, 100ms));
  CHECK(sees.look(true, 100ms));
}

TEST_CASE("a stop that is over costs nothing, however many there were") {
  observer sees;
  for (int stop = 0; stop < 20; ++stop) {
    for (int i = 0; i < 10; ++i) CHECK_FALSE(sees.look(true, 100ms));
    CHECK_FALSE(sees.look(false, 100ms));
  }
}

TEST_CASE("time in which the observer stood still is none in which it has seen a stop") {
  observer sees;
  CHECK_FALSE(sees.look(true, 0ms));
  for (int i = 1; i <= 10; ++i) CHECK_FALSE(sees.look(true, 1h));
  CHECK(sees.look(true, 199ms));
}

TEST_CASE("a late look finds no stop too long, and a process that was continued with it is well") {
  observer sees;
  CHECK_FALSE(sees.look(true, 0ms));
  for (int i = 1; i < 10; ++i) CHECK_FALSE(sees.look(true, 100ms));
  CHECK_FALSE(sees.look(true, 200ms));
  CHECK_FALSE(sees.look(false, 100ms));
  CHECK_FALSE(sees.look(true, 100ms));
}

TEST_CASE("looks that come sooner add only the time between them") {
  observer sees;
  CHECK_FALSE(sees.look(true, 0ms));
  for (int i = 1; i < 1000; ++i) CHECK_FALSE(sees.look(true, 1ms));
  CHECK(sees.look(true, 1ms));
}
