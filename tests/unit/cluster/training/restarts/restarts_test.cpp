#include <signal.h>

#include <catch2/catch_test_macros.hpp>

#include "cluster/training/restarts/restarts_core.hpp"

using namespace troupe;
using namespace troupe::cluster;

TEST_CASE("a trainer that dies or fails is started again, so many times in all") {
  restarts_core restarts(3);
  CHECK(restarts.on_end({.signal = SIGKILL}) == 1U);
  CHECK(restarts.on_end({.code = exit_failed}) == 2U);
  CHECK(restarts.on_end({.signal = SIGSEGV}) == 3U);
  CHECK_FALSE(restarts.on_end({.signal = SIGKILL}));
  CHECK(restarts.made() == 3);
  CHECK_FALSE(restarts_core(0).on_end({.signal = SIGKILL}));
}

TEST_CASE("what would end in the same way again, or as somebody asked, is not started again") {
  for (const int code : {0, exit_refused, exit_saved_elsewhere, exit_not_saved,
                         exit_by_signal + SIGTERM, exit_by_signal + SIGUSR1})
    CHECK_FALSE(restarts_core(1).on_end({.code = code}));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    CHECK_FALSE(restarts_core(1).on_end({.signal = signal}));
}

TEST_CASE("a later trainer that is refused what the first one was not is started again") {
  restarts_core restarts(3);
  REQUIRE(restarts.on_end({.signal = SIGKILL}) == 1U);
  CHECK(restarts.on_end({.code = exit_refused}) == 2U);
  CHECK(restarts.on_end({.code = exit_refused}) == 3U);
  CHECK_FALSE(restarts.on_end({.code = exit_refused}));
}

TEST_CASE("nothing is started once a signal has asked for the end") {
  restarts_core restarts(5);
  REQUIRE(restarts.on_end({.signal = SIGKILL}) == 1U);
  restarts.interrupt();
  CHECK_FALSE(restarts.on_end({.signal = SIGKILL}));
  CHECK_FALSE(restarts.on_end({.code = exit_failed}));
  CHECK_FALSE(restarts.on_end({.code = exit_refused}));
}
