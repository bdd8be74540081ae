// `troupe doctor` of a run whose stages others start: it waits for them where they join, and
// examines the machines of those that come.

#include <signal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/multiprocess/hosts/launch_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

const std::string trainer_door = "10.77.0.1:4711";  // home's

std::vector<std::string> join_as(const std::string& name, const std::filesystem::path& secret) {
  return {TROUPE_COMMAND,  "join",          trainer_door, "--name",      name,
          "--secret-file", secret.string(), "--program",  TROUPE_PROGRAM};
}

/// A run of two stages that others start. `seconds`: for them to join.
std::string run_of_others(const test_hosts& hosts, const std::string& seconds) {
  return write_config(
      hosts / "run.toml",
      awaited_cluster(trainer_door, write_secret(hosts / "secret"),
                      "program = \"" TROUPE_PROGRAM "\"\njoin_timeout = " + seconds + "\n") +
          small_run(hosts / "weights.safetensors", "resnet18"));
}

/// Whether a line says that this stage may join.
bool calls_for(std::string_view line, const std::string& name) {
  return line.find(name + " may join now: troupe join " + trainer_door + " --name " + name) !=
         std::string_view::npos;
}

}  // namespace

TEST_CASE("Machines on which others start the stages are examined once they have joined",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto file = run_of_others(hosts, "60");
  std::vector<std::unique_ptr<running_program>> stages;
  const auto outcome = hosts.home().run(as_examined(file), [&](pid_t, std::string_view line) {
    const auto name = "stage-" + std::to_string(stages.size());
    if (stages.size() == 2 || !calls_for(line, name)) return;
    stages.push_back(std::make_unique<running_program>(hosts.at(stages.size()),
                                                       join_as(name, hosts / "secret")));
  });
  expect_no_error(outcome);
  expect_line(outcome, {"ok", "stage-0", "node", "alpha, "});
  expect_line(outcome, {"ok", "stage-1", "node", "beta, "});
  expect_line(outcome, {"stage-1", "memory", "weights, gradients and the optimizer's state, and "});
  expect_line(outcome, {"stage-1", "cores", " on "});
  expect_line(outcome, {"ok", "stage-1", "versions", "as on trainer"});
  expect_line(outcome, {"ok", "stage-0", "clock", " the trainer's (within "});
  for (const auto* edge :
       {"stage-0 -> trainer", "stage-1 -> trainer", "stage-0 -> stage-1", "stage-1 -> stage-0"})
    expect_line(outcome, {"ok", edge, "sealed tcp, ", "(a plain socket: ", " MB/s)"});
  CHECK_THAT(outcome.out, !ContainsSubstring("not examined"));
  REQUIRE(stages.size() == 2);
  for (const auto& each : stages) {
    const auto stage = each->end();
    CHECK(stage.code == 0);
    CHECK_THAT(stage.last_line(),
               ContainsSubstring("troupe doctor has examined this machine; join again"));
  }
  CHECK(programs_left(hosts, 2s) == "");
}

TEST_CASE("Doctor says who has not joined, by which command it does, and who was refused",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto file = run_of_others(hosts, "12");  // for two that come one after the other
  const auto other = write_secret(hosts / "other_secret", "known-to-nobody-else");
  std::optional<program_outcome> stranger, surplus;
  const auto outcome = hosts.home().run(as_examined(file), [&](pid_t, std::string_view line) {
    if (surplus || !calls_for(line, "stage-1")) return;
    surplus = hosts.at(0).run(join_as("stage-7", hosts / "secret"));
    stranger = hosts.at(0).run(join_as("stage-0", other));  // the last one is told
  });
  CHECK(outcome.code == 1);
  expect_line(outcome, {"warning", "stage-0", "node", "it has not joined within 12 s",
                        "(a connection was refused: ", "cluster's secret"});
  expect_line(outcome, {"-> start it while doctor waits: troupe join " + trainer_door +
                        " --name stage-1 --secret-file FILE --config FILE"});
  expect_line(outcome, {"ok", "trainer", "versions"});  // all else is examined anyway
  CHECK_THAT(outcome.out, ContainsSubstring("; not examined: stage-0, stage-1\n"));
  REQUIRE(surplus);
  CHECK(surplus->code == 2);
  CHECK_THAT(surplus->last_line(),
             ContainsSubstring("this run has no node 'stage-7'; it has stage-0, stage-1"));
  REQUIRE(stranger);
  CHECK(stranger->code == 2);
  CHECK_THAT(stranger->last_line(), ContainsSubstring("the secret (--secret-file)"));
  CHECK(programs_left(hosts, 2s) == "");
}

TEST_CASE("A process that has joined a doctor that is killed ends, and says so", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto file = run_of_others(hosts, "60");
  std::optional<running_program> stage;
  const auto outcome = hosts.home().run(as_examined(file), [&](pid_t, std::string_view line) {
    if (!stage && calls_for(line, "stage-0"))
      stage.emplace(hosts.at(0), join_as("stage-0", hosts / "secret"));
    if (line.find("waiting for stage-1: ") == std::string_view::npos) return;
    for (const auto& each : hosts.home().processes_with(TROUPE_PROGRAM)) ::kill(each.pid, SIGKILL);
  });
  CHECK((outcome.signal == SIGKILL || outcome.code != 0));
  REQUIRE(stage);
  const auto ended = stage->end();
  CHECK(ended.code == 1);
  CHECK_THAT(ended.last_line(),
             ContainsSubstring("stage-0: troupe doctor at " + trainer_door + " is gone"));
  CHECK(programs_left(hosts, 2s) == "");
}
