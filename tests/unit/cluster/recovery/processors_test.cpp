// When a stage goes on on another processor.

#include <catch2/catch_test_macros.hpp>
#include <string>

#include "cluster/recovery/processors_core.hpp"

namespace {

using troupe::cluster::processors_core;

const std::string here = "AMD EPYC 7B13 with AVX2", there = "Intel Xeon 8481C with AVX-512";

}  // namespace

TEST_CASE("a stage that goes on on another processor than it began on is told, once in a run") {
  processors_core stages;
  CHECK_FALSE(stages.computes_on(0, here));
  CHECK_FALSE(stages.computes_on(1, there));  // stages may begin on different ones
  CHECK_FALSE(stages.computes_on(0, here));
  CHECK_FALSE(stages.computes_on(1, there));
  CHECK(stages.computes_on(1, here) == there);
  CHECK_FALSE(stages.computes_on(0, there));
  CHECK_FALSE(stages.computes_on(1, here));
}

TEST_CASE("the same processor with another instruction set is another one") {
  processors_core stages;
  CHECK_FALSE(stages.computes_on(0, "AMD EPYC 9B14 with AVX-512"));
  CHECK(stages.computes_on(0, "AMD EPYC 9B14 with AVX2") == "AMD EPYC 9B14 with AVX-512");
}

TEST_CASE("stages on no CPU are not told apart") {
  processors_core stages;
  CHECK_FALSE(stages.computes_on(0, ""));
  CHECK_FALSE(stages.computes_on(0, here));
  CHECK_FALSE(stages.computes_on(0, ""));
  CHECK(stages.computes_on(0, there) == here);
}
