// A file for each node of a launch, and what comes last when a stage is killed.

#include <signal.h>
#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <regex>
#include <sstream>
#include <string>

#include "tests/multiprocess/hosts/launch_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

/// Two local nodes whose lines go to files in `logs`.
std::string logged_cluster(const std::filesystem::path& logs) {
  return "[cluster]\nlaunch = \"local\"\nprogram = \"" TROUPE_PROGRAM "\"\nlogs = \"" +
         logs.string() + "\"\n" + node_table("alpha", "") + node_table("beta", "");
}

/// The process of a stage of a launch.
pid_t stage_of(pid_t trainer, const std::string& name) {
  for (const auto agent : children_of(trainer))
    for (const auto stage : children_of(agent))
      if (bytes_of("/proc/" + std::to_string(stage) + "/cmdline").find(name) != std::string::npos)
        return stage;
  return 0;
}

}  // namespace

TEST_CASE("a stage that is killed is named last, and each node has a file of its own lines") {
  const scratch_folder folder;
  const auto logs = folder / "some" / "logs";
  const auto steps = folder / "steps";
  const auto file = write_config(folder / "run.toml", logged_cluster(logs) + endless_run(steps));
  bool killed = false;
  const auto outcome =
      run_program({"--config", file, "--verbose"}, [&](pid_t trainer, std::string_view line) {
        if (killed || line.find("-> stage-1") == std::string_view::npos) return;
        killed = true;
        CHECK(wait_for_content(steps));
        const auto victim = stage_of(trainer, "stage-1");
        REQUIRE(victim > 0);
        kill(victim, SIGKILL);
      });
  CHECK(killed);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring("stage-1 on node beta was killed by signal 9 (SIGKILL)"));
  const auto alpha = bytes_of(logs / "alpha.log");
  const auto beta = bytes_of(logs / "beta.log");
  INFO(alpha << "\n" << beta);
  CHECK_THAT(beta, ContainsSubstring("agent: stage-1 was killed by signal 9 (SIGKILL)"));
  CHECK_THAT(beta, ContainsSubstring("stage-1: debug: stage-1: process"));
  CHECK_THAT(alpha, ContainsSubstring("stage-0: debug: stage-0: process"));
  CHECK(alpha.find("stage-1: process") == std::string::npos);
  const std::regex whole("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z (agent|stage-[01]): .*");
  std::istringstream lines(alpha + beta);
  for (std::string line; std::getline(lines, line);) CHECK(std::regex_match(line, whole));
}

TEST_CASE("a full disk under a node's log is a warning, and the run goes on", "[untimed]") {
  const scratch_folder folder;
  const auto logs = folder / "logs";
  std::filesystem::create_directory(logs);
  std::filesystem::create_symlink("/dev/full", logs / "beta.log");
  const auto weights = folder / "weights";
  const auto file = write_config(folder / "run.toml", logged_cluster(logs) + small_run(weights));
  const auto outcome = run_program({"--config", file, "--verbose"});
  CHECK(outcome.code == 0);
  CHECK_FALSE(bytes_of(weights).empty());
  const std::string warning = "beta.log can be written no more: No space left on device; the run";
  const auto first = outcome.err.find(warning);
  REQUIRE(first != std::string::npos);
  CHECK(outcome.err.find(warning, first + 1) == std::string::npos);
  CHECK_FALSE(bytes_of(logs / "alpha.log").empty());
}

TEST_CASE("logs that cannot be written, or have no node, are refused before anything starts",
          "[untimed]") {
  const scratch_folder folder;
  const auto taken = folder / "taken";
  write_config(taken, "a file");
  const auto file =
      write_config(folder / "run.toml", logged_cluster(taken) + small_run(folder / "weights"));
  const auto outcome = run_other(TROUPE_COMMAND, {"launch", file});
  CHECK(outcome.code == 2);
  CHECK_THAT(outcome.last_line(), ContainsSubstring("cluster.logs: " + taken.string()));
  const auto logs = folder / "waiting";
  std::filesystem::create_directory(logs);
  REQUIRE(::mkfifo((logs / "alpha.log").c_str(), 0600) == 0);  // which nobody reads
  const auto waits = run_other(
      TROUPE_COMMAND,
      {"launch",
       write_config(folder / "waits.toml", logged_cluster(logs) + small_run(folder / "weights"))});
  CHECK(waits.code == 2);
  CHECK_THAT(waits.last_line(),
             ContainsSubstring((logs / "alpha.log").string() + " cannot be written: "));
  const auto plain = run_program({"--logs", folder / "logs", "--steps", "1"});
  CHECK(plain.code == 2);
  CHECK_THAT(plain.last_line(), ContainsSubstring("--logs: there is a file for each node"));
}
