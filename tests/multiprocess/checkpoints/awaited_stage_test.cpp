// A run whose stages somebody starts by hand, and of which one is lost.

#include <signal.h>
#include <sys/types.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string_view>

#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/multiprocess/checkpoints/stages_by_hand.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

}  // namespace

TEST_CASE("A run that is stopped while it waits for a stage in the place of a lost one ends",
          "[untimed]") {
  const scratch_folder folder;
  stages_by_hand stages(folder);
  const auto lose_one = at_line("step-000004 in ", [&](pid_t) { stages.last().kill(); });
  pid_t trainer = 0;  // later it is not the only child of this process
  const auto start_two = [&](pid_t program, std::string_view line) {
    if (stages.size() == 0) trainer = program;
    if (stages.size() == 2 && stages_by_hand::is_awaited(line)) {
      REQUIRE(trainer > 0);
      ::kill(trainer, SIGINT);
    }
    if (stages.size() < 2) stages.start_awaited(line);
  };
  const auto outcome = run_program(
      two_stages({"--config", stages.config(), "--on-fault", "recover", "--checkpoint-dir",
                  folder / "checkpoints", "--checkpoint-every", "4", "--resume", "auto"},
                 100000),
      one_after_other(start_two, lose_one));
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring("the run was stopped while it waited for stage-"));
  CHECK_THAT(outcome.err, ContainsSubstring("to resume this run from step "));
}
