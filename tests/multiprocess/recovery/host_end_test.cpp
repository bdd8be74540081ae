// A process of which the first actor ends, as one whose handler has thrown, is of no use any more.

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>

#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/multiprocess/recovery/calm_run.hpp"
#include "tests/multiprocess/recovery/watched_run.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

}  // namespace

TEST_CASE("A process whose host ends is lost with that reason, and replaced in a run that recovers",
          "[untimed]") {
  const scratch_folder folder;
  const auto run = two_stages({});
  const calm_run calm(TROUPE_PROGRAM, run);
  const auto mark = folder / "the-host-ends";
  REQUIRE(::setenv("TROUPE_HOST_ENDS", mark.c_str(), 1) == 0);
  const auto end_host = [&](pid_t) { write_text(mark, ""); };
  const auto ended = run_program(run, at_step(3, end_host));
  const auto outcome = run_program(
      with(run, {"--on-fault", "recover", "--save", folder / "weights"}), at_step(3, end_host));
  ::unsetenv("TROUPE_HOST_ENDS");
  CHECK(ended.code == 1);
  CHECK_THAT(ended.last_line(), ContainsSubstring(": its host has ended: "));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err,
             ContainsSubstring("; it is replaced") && ContainsSubstring(" is replayed from step "));
  check_same_weights(calm.weights(), folder / "weights");
}
