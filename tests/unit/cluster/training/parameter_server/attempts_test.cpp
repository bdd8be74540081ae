#include <catch2/catch_test_macros.hpp>

#include "cluster/training/parameter_server/attempts_core.hpp"

using troupe::cluster::server_attempts;

TEST_CASE("a server goes on without some workers, and not without a shard or all workers") {
  const server_attempts of(2, 3);  // shards, workers
  CHECK_FALSE(of.is_fatal({}));
  CHECK_FALSE(of.is_fatal({2}));
  CHECK_FALSE(of.is_fatal({2, 4}));
  CHECK(of.is_fatal({2, 3, 4}));
  CHECK(of.is_fatal({1}));
  CHECK(of.is_fatal({0, 3}));
}

TEST_CASE("attempts that do no new step are bounded, and a new step resets their count") {
  server_attempts of(1, 1);
  CHECK(of.next(0));
  CHECK(of.next(5));  // the first of them behind step 5
  CHECK(of.in_vain() == 1);
  CHECK(of.next(5));
  CHECK(of.next(4));  // what another has done counts
  CHECK(of.in_vain() == 3);
  CHECK(of.next(6));
  CHECK(of.in_vain() == 1);
  CHECK(of.next(6));
  CHECK(of.next(6));
  CHECK_FALSE(of.next(6));
  CHECK(of.in_vain() == server_attempts::most_in_vain + 1);
}
