// A stage whose arithmetic throws is replaced like one that is lost; where the same action throws
// again, the run ends.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/multiprocess/program.hpp"
#include "tests/multiprocess/recovery/disturbed_run.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests::recovery;
using Catch::Matchers::Matches;
using tests::count_of;
using tests::run_other;
using tests::scratch_folder;
using tests::with;
using tests::words;

/// From here on the program's layer throws.
class thrown_file {
 public:
  explicit thrown_file(const std::filesystem::path& file) {
    REQUIRE(::setenv("TROUPE_THROWN", file.c_str(), 1) == 0);
  }
  thrown_file(const thrown_file&) = delete;
  thrown_file& operator=(const thrown_file&) = delete;
  ~thrown_file() { ::unsetenv("TROUPE_THROWN"); }
};

words throwing(const std::string& model, const words& more) {
  auto run = training(with({"--stages", "2"}, more), 8);
  std::ranges::replace(run, std::string("small"), model);
  return run;
}

}  // namespace

TEST_CASE("A stage whose arithmetic throws once is replaced, and the run goes on to the same bits",
          "[untimed]") {
  const calm_run calm(TROUPE_THROWING, throwing("throws_once", {}));
  for (const std::string link : {"shm", "tcp"}) {
    INFO(link);
    const scratch_folder folder;
    const thrown_file thrown(folder / "thrown");
    const auto outcome = run_other(
        TROUPE_THROWING, with(with(throwing("throws_once", {"--link", link}), recovering),
                              {"--save", folder / "stormy", "--json", folder / "stormy.json"}));
    CHECK(outcome.code == 0);
    CHECK_THAT(outcome.err, ContainsSubstring("warning: stage-1: F") &&
                                ContainsSubstring(": it was told to throw; it is replaced\n"));
    check_sequel(outcome.err, 1, sequel::replayed);
    CHECK(tests::steps_in(folder / "stormy.json") == tests::steps_in(calm.steps()));
    CHECK(losses_in(folder / "stormy.json") == losses_in(calm.steps()));
    tests::check_same_weights(calm.weights(), folder / "stormy");
    tests::check_same_weights(calm.state(), folder / "stormy.state.safetensors");
  }
}

TEST_CASE("An action that throws again in another process ends the run by its name") {
  const scratch_folder folder;
  const thrown_file thrown(folder / "thrown");
  const auto outcome = run_other(
      TROUPE_THROWING,
      with(with(throwing("throws_always", {}), recovering), {"--save", folder / "weights"}));
  CHECK(outcome.code == 1);
  CHECK_THAT(
      outcome.last_line(),
      Matches(".*stage-1: F[01] of step [0-9]+ failed twice: layer2.* with .*: it was told to "
              "throw; then layer2.* with .*: it was told to throw"));
  CHECK(count_of(outcome.err, "it is replaced") == 1);
  CHECK(count_of(outcome.err, " is replayed from step ") == 1);
}

TEST_CASE("Arithmetic that throws ends a run that does not recover") {
  const scratch_folder folder;
  const thrown_file thrown(folder / "thrown");
  const auto outcome =
      run_other(TROUPE_THROWING, with(throwing("throws_once", {}), {"--save", folder / "weights"}));
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(),
             Matches(".*stage-1: F[01] of step [0-9]+ failed: layer2.* with .*: it was told to "
                     "throw"));
  CHECK_THAT(outcome.err, !ContainsSubstring("replaced"));
}
