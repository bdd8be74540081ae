// How an error says that the arithmetic of a stage has thrown.

#include <catch2/catch_test_macros.hpp>

#include "actors/recovery/failed_work.hpp"

namespace {

using namespace troupe;
using actors::failed_work;
using actors::failed_work_in;

/// As a stage answers it.
error of_stage(error why) {
  why.text = "stage-1: " + why.text;
  return why;
}

}  // namespace

TEST_CASE("work that failed is read as it was told, by its step among training steps") {
  actors::run_stage order;
  order.step = {{}, {9}};
  order.number = 7;
  const auto trained = of_stage(actors::failure_of_work("F3", order, "it failed: no memory"));
  CHECK(trained ==
        error{errc::handler_failed, "stage-1: F3 of step 7 failed: it failed: no memory"});
  CHECK(failed_work_in(trained) == failed_work{"stage-1: F3 of step 7", "it failed: no memory"});
  order.kind = engine::step_kind::evaluation;
  CHECK(failed_work_in(of_stage(actors::failure_of_work("F3", order, "a shape"))) ==
        failed_work{"stage-1: F3 of the evaluation after step 6", "a shape"});
}

TEST_CASE("other errors are none of failed work") {
  const auto is_one = [](errc code, const char* text) {
    return failed_work_in({code, text}).has_value();
  };
  CHECK(is_one(errc::handler_failed, "stage-1: the update of step 12 failed: no memory"));
  CHECK_FALSE(is_one(errc::peer_lost, "stage-1: the update of step 12 failed: no memory"));
  CHECK_FALSE(is_one(errc::handler_failed, "stage-1: step 12: the loss is NaN"));
  CHECK_FALSE(is_one(errc::handler_failed, "stage-1: the file failed: no room"));
  CHECK_FALSE(is_one(errc::handler_failed, "stage-1: a step failed: no room"));
  CHECK_FALSE(is_one(errc::handler_failed, "stage-1: step  failed: no room"));
  CHECK_FALSE(is_one(errc::handler_failed, "12 failed: no room"));
  CHECK_FALSE(is_one(errc::handler_failed, " failed: no room"));
}
