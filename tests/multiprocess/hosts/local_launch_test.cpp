// `troupe launch` with agents on this machine: nothing but the agent differs from a plain run.

#include <signal.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <functional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "tests/multiprocess/hosts/launch_fixture.hpp"
#include "tests/multiprocess/recovery/calm_small_run.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

/// A launch by two agents, to which something is done when the run has begun; all of their
/// processes must be gone after it. `cluster`: of its table, besides.
program_outcome disturb(const std::string& cluster,
                        const std::function<void(pid_t trainer, pid_t agent)>& act) {
  const scratch_folder folder;
  const auto steps = folder / "steps";
  const auto file =
      write_config(folder / "run.toml", local_cluster + cluster + node_table("alpha", "") +
                                            node_table("beta", "") + endless_run(steps));
  std::vector<pid_t> all;
  auto outcome =
      run_other(TROUPE_COMMAND, {"launch", file}, at_line("-> stage-1", [&](pid_t trainer) {
                  CHECK(wait_for_content(steps));
                  const auto agents = children_of(trainer);
                  REQUIRE(agents.size() == 2);
                  for (const auto agent : agents) {
                    all.push_back(agent);
                    for (const auto stage : children_of(agent)) all.push_back(stage);
                  }
                  act(trainer, agents.front());
                }));
  CHECK(all.size() == 4);
  for (const auto each : all) CHECK(wait_until_gone(each));
  return outcome;
}

}  // namespace

TEST_CASE("troupe launch with two local nodes trains to the same bits as a plain run",
          "[untimed]") {
  const scratch_folder folder;
  const auto alone = weights_of_small_run();
  const auto launched = folder / "launched.toml";
  write_config(launched, local_cluster + node_table("alpha", "") + node_table("beta", "") +
                             small_run(folder / "launched.safetensors"));
  const auto outcome = run_other(TROUPE_COMMAND, {"launch", launched, "--", "--verbose"});
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("stage-0 on node alpha exited with code 0"));
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1 on node beta exited with code 0"));
  CHECK_THAT(outcome.err, ContainsSubstring("[stage-1 on beta] "));
  CHECK_FALSE(alone.empty());
  CHECK(bytes_of(folder / "launched.safetensors") == alone);
  CHECK(children_of(getpid()).empty());
}

TEST_CASE("a node's environment, working folder and threads reach its stages", "[untimed]") {
  const scratch_folder folder;
  const auto there = folder / "there";
  std::filesystem::create_directory(there);
  const auto steps = folder / "steps";
  const auto cores = std::thread::hardware_concurrency();
  const auto threads = std::to_string(cores + 1);
  const auto file =
      write_config(folder / "run.toml",
                   local_cluster +
                       node_table("alpha", "",
                                  "environment = [\"TROUPE_TEST_WORD=of alpha\"]\n"
                                  "working_folder = \"" +
                                      there.string() + "\"\n") +
                       node_table("beta", "", "threads = " + threads + "\n") + endless_run(steps));
  bool looked = false;
  const auto outcome = run_other(
      TROUPE_COMMAND, {"launch", file, "--", "--verbose"},
      [&](pid_t trainer, std::string_view line) {
        if (looked || line.find("-> stage-1") == std::string_view::npos) return;
        looked = true;
        CHECK(wait_for_content(steps));
        std::size_t seen = 0;
        for (const auto agent : children_of(trainer)) {
          for (const auto stage : children_of(agent)) {
            const auto process = std::filesystem::path("/proc") / std::to_string(stage);
            const auto environment = bytes_of(process / "environ");
            const auto words = bytes_of(process / "cmdline");
            const bool is_alpha = words.find("stage-0") != std::string::npos;
            CHECK((environment.find("TROUPE_TEST_WORD=of alpha") != std::string::npos) == is_alpha);
            CHECK((std::filesystem::read_symlink(process / "cwd") == there) == is_alpha);
            ++seen;
          }
        }
        CHECK(seen == 2);
        kill(trainer, SIGINT);
      });
  CHECK(looked);
  CHECK(outcome.code == 130);
  CHECK_THAT(outcome.err, ContainsSubstring("stopping after the steps under way"));
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1: layers"));
  CHECK_THAT(outcome.err, ContainsSubstring("intra-op threads: 1"));
  CHECK_THAT(outcome.err, ContainsSubstring("intra-op threads: " + threads));
  CHECK_THAT(outcome.err,
             ContainsSubstring("node beta: its stages have " + threads + " threads together, on " +
                               std::to_string(cores) + " core") &&
                 ContainsSubstring("lower threads in its [[node]]"));
}

TEST_CASE("a launcher or an agent that is killed takes everything with it") {
  for (const int ends_agent : {0, SIGKILL, SIGINT}) {
    const bool kill_launcher = ends_agent == 0;
    const auto outcome = disturb("", [&](pid_t trainer, pid_t agent) {
      kill(kill_launcher ? trainer : agent, kill_launcher ? SIGKILL : ends_agent);
    });
    if (kill_launcher) {
      CHECK(outcome.signal == SIGKILL);
    } else {
      CHECK(outcome.code == 1);
      CHECK_THAT(outcome.last_line(),
                 ContainsSubstring(ends_agent == SIGKILL
                                       ? "its agent was killed by signal 9 (SIGKILL)"
                                       : "its agent has ended: signal 2 (SIGINT) asked it to end"));
    }
  }
}

TEST_CASE("an agent that is stopped in the middle of a run ends it, and nothing is left") {
  const auto outcome = disturb("silence = 2\n", [](pid_t, pid_t agent) { kill(agent, SIGSTOP); });
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring("node ") && ContainsSubstring(": its agent has been silent for "));
}

TEST_CASE("an agent that is not greeted, or is told nonsense, ends by itself", "[untimed]") {
  const auto gone = run_other("/bin/sh", {"-c", "exec " TROUPE_PROGRAM " --agent </dev/null"});
  CHECK(gone.code == 1);
  CHECK_THAT(gone.out, ContainsSubstring("troupe agent, protocol 1\n{"));
  CHECK_THAT(gone.err, ContainsSubstring("troupe agent: the launcher's stream has closed"));
  const auto garbled = run_other("/bin/sh", {"-c", "echo hello | " TROUPE_PROGRAM " --agent"});
  CHECK(garbled.code == 1);
  CHECK_THAT(garbled.err, ContainsSubstring("the launcher wrote a line that is no order"));
}

TEST_CASE("troupe check shows which stage would run where", "[untimed]") {
  const scratch_folder folder;
  const auto file =
      write_config(folder / "run.toml", local_cluster + node_table("alpha", "", "stages = [1]\n") +
                                            node_table("beta", "") +
                                            small_run(folder / "weights.safetensors", "resnet18"));
  const auto outcome = run_other(TROUPE_COMMAND, {"check", file, "--", "--cut", "layer3.0"});
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, ContainsSubstring("stage    layers"));
  CHECK_THAT(outcome.out, ContainsSubstring("0        conv1 .. layer2.1"));
  CHECK_THAT(outcome.out, ContainsSubstring("1        layer3.0 .. fc"));
  CHECK_THAT(outcome.out, ContainsSubstring("beta   this machine  cpu     1"));
  CHECK_THAT(outcome.out, ContainsSubstring("  device  threads  memory\n0 "));
  CHECK_THAT(outcome.out, ContainsSubstring(" MiB\n1 "));
  CHECK_THAT(outcome.out, ContainsSubstring("\ntrainer  -"));
  CHECK_FALSE(std::filesystem::exists(folder / "weights.safetensors"));
  const auto crowded = run_other(TROUPE_COMMAND, {"check", file, "--set", "node[1].threads=3"});
  CHECK(crowded.code == 0);
  CHECK_THAT(crowded.out,
             ContainsSubstring("node beta: its stages have 3 threads together, on 1 core: threads "
                               "that wait for a core slow all of them down; lower threads in its "
                               "[[node]]"));
}

TEST_CASE("troupe check says that a run on loopback is joined from this machine alone",
          "[untimed]") {
  const scratch_folder folder;
  const auto secret = write_secret(folder / "secret");
  const std::string word = "only processes of this machine can join at 127.0.0.1:4711";
  const auto checked = [&](const std::string& cluster) {
    const auto file =
        write_config(folder / "run.toml", cluster + small_run(folder / "weights.safetensors"));
    const auto outcome =
        run_other(TROUPE_COMMAND, {"check", file, "--set", "cluster.program=" TROUPE_PROGRAM});
    CHECK(outcome.code == 0);
    return outcome.out;
  };
  CHECK_THAT(checked(awaited_cluster("127.0.0.1:4711", secret)),
             ContainsSubstring(word) && ContainsSubstring("--listen ([link] listen)"));
  CHECK_THAT(checked(awaited_cluster("10.77.0.1:4711", secret)), !ContainsSubstring(word));
  CHECK_THAT(checked(local_cluster), !ContainsSubstring("can join"));
}

TEST_CASE("stages go where their predicted memory fits, and one that fits nowhere is refused",
          "[untimed]") {
  const scratch_folder folder;
  const auto written = [&](const std::string& alpha, const std::string& beta) {
    return write_config(folder / "run.toml",
                        local_cluster + node_table("alpha", "", alpha) +
                            node_table("beta", "", beta) +
                            small_run(folder / "weights.safetensors", "resnet18"));
  };
  const std::vector<std::string> cut{"--", "--cut", "layer4.0"};  // the second has 33 of 45 MB
  const auto troupe = [&](const std::string& command, const std::string& file) {
    return run_other(TROUPE_COMMAND, {command, file, cut[0], cut[1], cut[2]});
  };
  // By cores stage 1 would be on beta.
  const auto turned = written("memory_mib = 4000\n", "memory_mib = 100\n");
  const auto checked = troupe("check", turned);
  CHECK(checked.code == 0);
  CHECK(std::regex_search(checked.out, std::regex("\n0 +conv1[^\n]* beta ")));
  CHECK(std::regex_search(checked.out, std::regex("\n1 +layer4.0[^\n]* alpha ")));
  CHECK(std::regex_search(checked.out,
                          std::regex("\nnode beta: its stages take [0-9]+ MiB of 100 MiB")));
  const auto launched = troupe("launch", turned);
  CHECK(launched.code == 0);
  CHECK_THAT(launched.err, ContainsSubstring("stage-0 (beta, "));
  CHECK_THAT(launched.err, ContainsSubstring("-> stage-1 (alpha, "));

  const auto tight = written("memory_mib = 100\n", "memory_mib = 101\n");
  for (const auto* command : {"check", "launch"}) {
    const auto refused = troupe(command, tight);
    CHECK(refused.code == 2);
    CHECK(std::regex_search(refused.last_line(),
                            std::regex("stage 1 is predicted to take [0-9]+ MiB of memory, and no "
                                       "node has that: the largest, node \"beta\", has 101 MiB")));
  }
  const auto doctor = run_other(TROUPE_COMMAND, {"doctor", tight});
  CHECK(doctor.code == 2);
  CHECK_THAT(doctor.out, ContainsSubstring("predicted to take"));
  auto distant = run_other(TROUPE_COMMAND, {"check", tight, "--set", "data.node=beta"});
  CHECK(distant.code == 2);
  CHECK_THAT(distant.err, ContainsSubstring("node.memory_mib: stages are placed by the memory"));
}

TEST_CASE("troupe check names every error of a file, and launch refuses it", "[untimed]") {
  const scratch_folder folder;
  const auto file =
      write_config(folder / "run.toml", local_cluster + "silense = 3\n" + node_table("alpha", "") +
                                            "stages = [\"x\"]\n[train]\nbatch_size = \"many\"\n");
  const auto checked = run_other(TROUPE_COMMAND, {"check", file});
  CHECK(checked.code == 2);
  CHECK_THAT(checked.err,
             ContainsSubstring(file + ":4:1: cluster.silense: unknown key; did you mean "
                                      "silence?"));
  CHECK_THAT(checked.err,
             ContainsSubstring(file + ":9:11: node.stages: expected a list of integers"));
  CHECK_THAT(checked.err,
             ContainsSubstring(file + ":11:14: train.batch_size: expected an integer"));
  CHECK(run_other(TROUPE_COMMAND, {"launch", file}).code == 2);
}

TEST_CASE("several files and --set reach the program of a launch, and say which one it is",
          "[untimed]") {
  const scratch_folder folder;
  const auto base = write_config(
      folder / "base.toml", "[cluster]\nprogram = \"no_such_program\"\n" +
                                small_run(folder / "${TROUPE_TEST_NAME:-weights}.safetensors"));
  const auto here = write_config(folder / "here.toml", local_cluster);
  const auto outcome =
      run_other(TROUPE_COMMAND, {"launch", base, here, "--set", "train.epochs=2", "--set",
                                 "pipeline.credits=1", "--", "--no-progress"});
  REQUIRE(outcome.code == 0);
  CHECK(std::filesystem::exists(folder / "weights.safetensors"));
  const auto checked =
      run_other(TROUPE_COMMAND, {"check", here, base, "--set", "cluster.program=" TROUPE_PROGRAM,
                                 "--set", "pipeline.stages=1"});
  REQUIRE(checked.code == 0);
  CHECK_THAT(checked.out, ContainsSubstring("\n0 ") && !ContainsSubstring("\n1 "));
  const auto wrong = run_other(TROUPE_COMMAND, {"check", base, here, "--set", "train.ephocs=2"});
  CHECK(wrong.code == 2);
  CHECK_THAT(wrong.err, ContainsSubstring("--set train.ephocs: unknown key; did you mean epochs?"));
}

TEST_CASE("troupe launch says what it cannot run", "[untimed]") {
  const scratch_folder folder;
  const auto refused = [&](const std::string& text, const std::string& word) {
    const auto file = write_config(folder / "run.toml", text);
    const auto outcome = run_other(TROUPE_COMMAND, {"launch", file});
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.err, ContainsSubstring(word));
  };
  refused("[pipeline]\nstages = 2\n", "cluster.program is left out");
  refused("[cluster]\nprogram = 3\n", ":2:11: cluster.program: expected a text, got the integer 3");
  refused("[cluster]\nprogram = \"no_such_program\"\n", "no program \"no_such_program\" beside");
  refused("[cluster\n", ":1:9: not valid TOML");
  const auto none = run_other(TROUPE_COMMAND, {"launch", folder / "none.toml"});
  CHECK_THAT(none.err, ContainsSubstring("none.toml cannot be read"));
}
