// Stages whose keepers share no memory with them: they are sent gradients, and compute versions.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>

#include "tests/multiprocess/recovery/disturbed_run.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/words.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests::recovery;
using tests::run_program;

const std::string as_gradients = " bytes of gradients and buffers instead of ";

}  // namespace

TEST_CASE("A lost stage goes on from versions that another process has computed", "[untimed]") {
  // A clipped update every second step.
  const auto outcome =
      check_run(training({"--stages", "2", "--link", "tcp"}),
                {{4, {.stage = "stage-0"}}, {8, {.stage = "stage-1"}}}, sequel::replayed);
  for (const std::string stage : {"stage-0", "stage-1"})
    CHECK_THAT(outcome.err, ContainsSubstring(stage + ": a version travels to its keeper as ") &&
                                ContainsSubstring(as_gradients));
  CHECK_THAT(outcome.err, !ContainsSubstring("its versions travel whole"));
}

TEST_CASE("A lost stage goes on from versions of steps that were left out", "[untimed]") {
  const auto outcome =
      check_run(training({"--stages", "2", "--link", "tcp", "--loss-scale", "dynamic",
                          "--loss-scale-interval", "2"},
                         10, 1),
                {{3, {.stage = "stage-0"}}, {6, {.stage = "stage-1"}}}, sequel::replayed);
  CHECK_THAT(outcome.err,
             ContainsSubstring(as_gradients) && !ContainsSubstring("its versions travel whole"));
}

TEST_CASE("A lost stage of replicas that share out the optimizer's state goes on from gradients",
          "[untimed]") {
  const auto outcome = check_run(
      in_microbatches(
          4, training({"--stages", "2", "--replicas", "2", "--zero", "1", "--link", "tcp"})),
      {{4, {.stage = "stage-1 of replica 0"}}, {7, {.stage = "stage-0 of replica 1"}}},
      sequel::replayed);
  CHECK_THAT(outcome.err,
             ContainsSubstring(as_gradients) && !ContainsSubstring("its versions travel whole"));
}

TEST_CASE("A check says what is sent of each version, and with muon all of it is") {
  const auto check = [](const std::string& optimizer) {
    const tests::scratch_folder folder;
    auto run = tests::with({"--check"}, training({"--stages", "2", "--link", "tcp", "--on-fault",
                                                  "recover", "--save", folder / "weights"}));
    std::ranges::replace(run, std::string("adam"), optimizer);
    const auto outcome = run_program(run);
    CHECK(outcome.code == 0);
    return outcome.out;
  };
  const std::string begin =
      "stage 1: each version travels to a keeper that shares no memory with it as ";
  CHECK_THAT(check("adam"), ContainsSubstring(begin) &&
                                ContainsSubstring(" of gradients and buffers, of which the keeper "
                                                  "computes "));
  CHECK_THAT(check("muon"),
             ContainsSubstring(begin) && !ContainsSubstring(" of gradients and buffers"));
}
