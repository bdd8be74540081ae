// Runs whose stages compute on devices: what keeps their versions has copies of its own.

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/multiprocess/recovery/calm_run.hpp"
#include "tests/multiprocess/recovery/watched_run.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

}  // namespace

TEST_CASE("Stages on devices go on after their trainer's last step, and after their own loss",
          "[untimed]") {
  const scratch_folder folder;
  const auto run = two_stages({"--threads-per-stage", "1"});
  const calm_run calm(TROUPE_ON_DEVICES, run);
  const auto outcome =
      run_other(TROUPE_ON_DEVICES, watched(folder, run, "1", "12"),
                one_after_other(at_step(5, kill_trainer), at_step(9, kill_stages)));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring(" on fake:0, ") && ContainsSubstring(from_memory) &&
                              ContainsSubstring("stage-0 and stage-1 are replayed from step") &&
                              !ContainsSubstring("bytes of gradients and buffers instead of"));
  CHECK(times_told(outcome.err, 1) == 1);
  CHECK(times_told(outcome.err, 12) == 1);
  check_same_weights(calm.weights(), folder / "weights");
}
