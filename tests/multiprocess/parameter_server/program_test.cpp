// The program parameter_server: processes over UCX, the same bits on any number of shards, lost
// workers and shards, interrupts, bad input.

#include <ATen/ops/equal.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "engine/state/safetensors.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/words.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

const std::vector<std::string> wide_run{"--model",      "wide", "--data", "clicks:4:1000:8000",
                                        "--batch-size", "64",   "--lr",   "0.5",
                                        "--momentum",   "0"};

struct trained {
  std::vector<double> losses;
  std::vector<engine::named_tensor> weights;
  double accuracy = 0;
};

trained train(std::vector<std::string> arguments) {
  const scratch_folder folder;
  arguments.insert(arguments.end(), {"--threads-per-worker", "1", "--seed", "7", "--save",
                                     folder / "weights", "--json", folder / "steps"});
  const auto outcome = run_program(arguments);
  REQUIRE(outcome.code == 0);
  CHECK(children_of(getpid()).empty());
  trained result;
  std::ifstream lines(folder / "steps");
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    if (object.contains("accuracy")) result.accuracy = object.at("accuracy").get<double>();
    if (object.contains("loss")) result.losses.push_back(object.at("loss").get<double>());
  }
  result.weights = engine::load_safetensors(folder / "weights").value();
  return result;
}

bool is_step(std::string_view line) {
  return line.find("step ") == 0;
}

/// Runs for long, and does something at the first step with the processes: shards, then workers.
tests::program_outcome run_until(const std::vector<std::string>& more,
                                 const std::function<void(pid_t, std::vector<pid_t>)>& act) {
  std::vector<pid_t> processes;
  const auto outcome = run_program(with(wide_run, more), [&](pid_t program, std::string_view line) {
    if (!processes.empty() || !is_step(line)) return;
    processes = children_of(program);
    std::ranges::sort(processes);
    REQUIRE(processes.size() == 4);
    act(program, processes);
  });
  for (const auto each : processes) CHECK(wait_until_gone(each));
  return outcome;
}

/// The numbers of the steps that a run has told of.
std::vector<std::uint64_t> steps_in(const std::filesystem::path& file) {
  std::vector<std::uint64_t> steps;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    if (object.contains("loss") && !object.contains("accuracy"))
      steps.push_back(object.at("step").get<std::uint64_t>());
  }
  return steps;
}

/// Of 700 updates each was applied; of those that were lost with their worker each is told of
/// once, or had been applied untold.
void check_accounts(const std::string& err, const std::string& mode,
                    const std::vector<std::uint64_t>& steps) {
  const std::regex accounts(
      "of 700 updates asked for 700 were begun and 700 applied; lost: (.*) with worker-1; "
      "of 1 lost pushes ([01]) had been applied");
  std::smatch found;
  REQUIRE(std::regex_search(err, found, accounts));
  CHECK(std::ranges::adjacent_find(steps) == steps.end());
  const std::size_t untold = mode == "asynchronous" && found[2] == "1" ? 1 : 0;
  CHECK(steps.size() + untold == 700);
  CHECK(std::ranges::max(steps) >= 700 - untold);
}

}  // namespace

TEST_CASE("A synchronous run has the same bits on any number of shards and any wire", "[untimed]") {
  const std::vector<std::string> resnet{
      "--model", "resnet18", "--data", "synthetic:3x32x32:10:32", "--batch-size", "8", "--steps",
      "3",       "--lr",     "0.05"};
  const auto one = train(with(resnet, {"--shards", "1", "--link", "shm"}));
  REQUIRE(one.losses.size() == 3);
  REQUIRE(one.weights.size() == 122);
  for (const auto& way : std::vector<std::vector<std::string>>{
           {"--shards", "2", "--link", "tcp"}, {"--shards", "3", "--link", "shm"}}) {
    const auto other = train(with(resnet, way));
    CHECK(one.losses == other.losses);
    REQUIRE(one.weights.size() == other.weights.size());
    for (std::size_t i = 0; i < one.weights.size(); ++i) {
      INFO(one.weights[i].name);
      CHECK(at::equal(one.weights[i].tensor, other.weights[i].tensor));
    }
  }
}

TEST_CASE("Tables that are cut among shards train to the same bits", "[untimed]") {
  const auto run = [](const char* shards) {
    return train(with(wide_run, {"--epochs", "1", "--no-eval", "--shards", shards}));
  };
  const auto one = run("1"), five = run("5");
  CHECK(one.losses == five.losses);
  REQUIRE(one.weights.size() == five.weights.size());
  for (std::size_t i = 0; i < one.weights.size(); ++i) {
    INFO(one.weights[i].name);
    CHECK(at::equal(one.weights[i].tensor, five.weights[i].tensor));
  }
}

TEST_CASE("The wide model learns, synchronously and asynchronously, its rows sparse", "[untimed]") {
  for (const std::string mode : {"synchronous", "asynchronous"}) {
    const auto outcome = train(with(wide_run, {"--mode", mode, "--epochs", "4"}));
    WARN(mode << ": accuracy " << outcome.accuracy);
    CHECK(outcome.accuracy > 0.75);
    CHECK(outcome.losses.size() == (mode == "synchronous" ? 500 : 1000));
  }
}

TEST_CASE("A killed worker is left out, and the run goes on", "[untimed]") {
  for (const std::string mode : {"synchronous", "asynchronous"}) {
    const scratch_folder folder;
    const auto outcome =
        run_until({"--mode", mode, "--steps", "700", "--link", "tcp", "--json", folder / "steps"},
                  [](pid_t, const std::vector<pid_t>& all) { kill(all[3], SIGKILL); });
    CHECK(outcome.code == 0);
    CHECK_THAT(outcome.err, ContainsSubstring("worker-1 is lost; going on with 1: worker-1 was "
                                              "killed by signal 9 (SIGKILL)\n"));
    CHECK_THAT(outcome.err, ContainsSubstring("evaluation after step 700"));
    check_accounts(outcome.err, mode, steps_in(folder / "steps"));
  }
}

TEST_CASE("A stopped worker is left out, and the run goes on") {
  const auto outcome =
      run_until({"--steps", "700", "--link", "tcp"},
                [](pid_t, const std::vector<pid_t>& all) { kill(all[3], SIGSTOP); });
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err,
             ContainsSubstring("worker-1 is lost; going on with 1: ") &&
                 ContainsSubstring("evaluation after step 700") &&
                 ContainsSubstring("of 700 updates asked for 700 were begun and 700 applied"));
}

TEST_CASE("A killed shard ends the run with its name and the signal") {
  for (const std::size_t each : {0U, 1U}) {  // the coordinator is with shard-0
    const auto outcome =
        run_until({"--steps", "100000"},
                  [&](pid_t, const std::vector<pid_t>& all) { kill(all[each], SIGKILL); });
    CHECK(outcome.code == 1);
    CHECK_THAT(outcome.last_line(), ContainsSubstring("shard-" + std::to_string(each) +
                                                      " was killed by signal 9 (SIGKILL)"));
  }
}

TEST_CASE("A stopped shard ends the run with its name") {
  const auto outcome = run_until(
      {"--steps", "100000"}, [](pid_t, const std::vector<pid_t>& all) { kill(all[1], SIGSTOP); });
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(), ContainsSubstring("shard-1"));
}

TEST_CASE("A worker that hangs is said, killed and left out, and the run goes on", "[untimed]") {
  std::optional<tests::stopped_thread> stopped;
  std::vector<pid_t> processes;
  bool is_left_out = false, goes_on = false;
  const auto outcome = run_program(
      {"--model", "resnet18", "--data", "synthetic:3x64x64:10:64", "--batch-size", "32", "--steps",
       "100000", "--no-eval", "--threads-per-worker", "1", "--slow-after", "1", "--hang-timeout",
       "4"},
      [&](pid_t program, std::string_view line) {
        is_left_out = is_left_out || line.find("worker-1 is lost") != line.npos;
        if (!is_step(line)) return;
        if (is_left_out && !goes_on) {
          goes_on = true;
          kill(program, SIGINT);
        }
        if (stopped) return;
        processes = children_of(program);
        REQUIRE(processes.size() == 4);
        stopped.emplace(tests::process_with_thread(processes, "worker-1"), "worker-1", true);
      });
  CHECK(goes_on);
  CHECK(outcome.code == 130);
  CHECK_THAT(outcome.err, ContainsSubstring("warning: worker-1 has been in ") &&
                              ContainsSubstring("longer than --hang-timeout allows (4.0 s)") &&
                              ContainsSubstring("worker-1 is lost; going on with 1"));
  for (const auto each : processes) CHECK(wait_until_gone(each));
}

TEST_CASE("A shard that hangs ends the run with what it hangs in", "[untimed]") {
  std::optional<tests::stopped_thread> stopped;
  const auto outcome =
      run_until({"--steps", "100000", "--slow-after", "1", "--hang-timeout", "4"},
                [&](pid_t, const std::vector<pid_t>& all) {
                  stopped.emplace(tests::process_with_thread(all, "shard-1"), "shard-1");
                });
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err, ContainsSubstring("warning: shard-1 has been in "));
  CHECK_THAT(outcome.last_line(), ContainsSubstring("shard-1 has been in ") &&
                                      ContainsSubstring("longer than --hang-timeout allows"));
}

TEST_CASE("Ctrl-C ends a run of a parameter server cleanly and saves the weights") {
  for (const std::string mode : {"synchronous", "asynchronous"}) {
    const scratch_folder folder;
    const auto file = folder / "weights";
    const auto outcome =
        run_until({"--mode", mode, "--steps", "100000", "--no-eval", "--save", file},
                  [](pid_t program, const std::vector<pid_t>&) { kill(program, SIGINT); });
    CHECK(outcome.code == 130);
    CHECK(engine::load_safetensors(file).value().size() == 8);
  }
}

TEST_CASE("troupe check shows the processes of a parameter server, and trains nothing",
          "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "run.toml";
  // Four tables of 4 MiB, with a momentum each; a run of this length would be killed.
  std::ofstream(file) << "[cluster]\nprogram = \"" TROUPE_PROGRAM
                         "\"\n"
                         "[server]\nshards = 2\nworkers = 3\nthreads_per_worker = 1\n"
                         "[model]\nname = \"wide\"\n"
                         "[data]\nsource = \"clicks:4:65536:8000\"\n"
                         "[train]\nbatch_size = 48\nsteps = 100000000\nsave = \"" +
                             (folder / "weights").string() + "\"\n";
  const auto check = [&](const std::vector<std::string>& more) {
    return run_other(TROUPE_COMMAND, with({"check", file}, more));
  };
  const auto shown = check({});
  CHECK(shown.code == 0);
  const auto has_row = [&](const std::string& row) {
    return std::regex_search(shown.out, std::regex("\n" + row + "\n"));
  };
  for (const auto* shard : {"shard-0", "shard-1"})
    CHECK(has_row(shard + std::string(" .* shared memory +1 +8 MiB +8 MiB")));
  for (const auto* worker : {"worker-0", "worker-1", "worker-2"})
    CHECK(has_row(worker + std::string(" .* shared memory +1 +- +-")));
  CHECK(has_row("trainer .* shared memory +- +- +-"));
  CHECK_THAT(shown.out, ContainsSubstring("Not predicted: ") && !ContainsSubstring("shard-2"));
  CHECK_FALSE(std::filesystem::exists(folder / "weights"));
  const auto examined = run_other(TROUPE_COMMAND, {"doctor", file});
  CHECK(examined.code != 2);  // a machine may have few cores, or little room
  CHECK_THAT(examined.out,
             ContainsSubstring("needs 32 MiB for the shards' weights and optimizer state") &&
                 ContainsSubstring("clicks:4:65536:8000 can be read") &&
                 !ContainsSubstring("stages have"));
  CHECK_FALSE(std::filesystem::exists(folder / "weights"));
  const auto met = check({"--", "--listen", "127.0.0.1:4711"});
  CHECK_THAT(met.out, ContainsSubstring("  127.0.0.1:4711 ") && ContainsSubstring("  a free port"));

  const auto few = check({"--", "--data", "clicks:4:65536:8"});
  CHECK(few.code == 2);
  CHECK_THAT(few.err, ContainsSubstring("8 training samples, less than a batch of 48"));
  const auto wrong = check({"--set", "server.shards=0", "--set", "train.ephocs=2"});
  CHECK(wrong.code == 2);
  CHECK_THAT(wrong.err, ContainsSubstring("server.shards") && ContainsSubstring("ephocs"));
  CHECK(few.out + wrong.out == "");
}

TEST_CASE("What a parameter server cannot do is refused in one line", "[untimed]") {
  const auto refuses = [](const std::vector<std::string>& arguments,
                          const std::vector<std::string>& words) {
    const auto outcome = run_program(arguments);
    CHECK(outcome.code == 2);
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
    for (const auto& word : words) CHECK_THAT(outcome.err, ContainsSubstring(word));
  };
  refuses({"--shard", "2"}, {"--shard", "--shards"});
  refuses({"--shards", "0"}, {"--shards", "1 to 1024"});
  refuses({"--mode", "sync"}, {"sync", "synchronous, asynchronous"});
  refuses({"--stages", "2"}, {"--stages"});
  refuses({"--predict"}, {"--predict: unknown flag"});
  refuses({"--check", "--join", "127.0.0.1:4711", "--node-name", "shard-0"}, {"--check", "--join"});
  refuses({"--workers", "3", "--batch-size", "64"}, {"3 workers", "batch of 64"});
  refuses({"--link", "loopback"}, {"--link", "auto, tcp, shm"});
  refuses({"--model", "wide", "--data", "fashion-mnist"}, {"wide", "clicks:FIELDS:ROWS"});
  refuses({"--model", "wide", "--data", "clicks:4"},
          {"--data: ", "clicks:4", "clicks:FIELDS:ROWS"});
  refuses({"--model", "deep"}, {"--model: unknown value \"deep\"", "wide, resnet18"});
  refuses({"--model", "resnet19"}, {"did you mean \"resnet18\"?"});
  refuses({"--staleness", "2"}, {"--staleness: applies to asynchronous workers only"});
  refuses({"--model", "resnet18", "--data", "synthetic:3x32x32:10:8", "--batch-size", "2"},
          {"--batch-size: ", "share of 2 samples a batch, with 2 workers, is one"});
  refuses({"--model", "resnet18", "--data", "synthetic:3x32x32:10:8", "--batch-size", "64"},
          {"8 training samples", "64"});
  const scratch_folder folder;
  refuses({"--model", "resnet18", "--data", folder / "none"}, {"--data: ", "none"});
  refuses({"--model", "wide", "--data", "clicks:4:10", "--classes", "1"},
          {"--classes: 1 class is too few: the data has 2"});
  std::ofstream(folder / "run.toml") << "[server]\nworker = 2\n";
  refuses({"--config", folder / "run.toml"}, {"run.toml:2", "worker", "workers"});
  std::ofstream(folder / "classes.toml") << "[model]\nname = \"resnet18\"\nclasses = 4\n"
                                            "[data]\nsource = \"synthetic:3x32x32:10:64\"\n";
  refuses({"--config", folder / "classes.toml", "--batch-size", "8"},
          {"classes.toml:3:11: model.classes: 4 classes are too few: the data has 10"});
}
