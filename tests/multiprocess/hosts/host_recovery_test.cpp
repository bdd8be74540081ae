// Runs over nodes that go on when they lose stages, agents or whole hosts: to the bits of a run
// that nothing happened to.

#include <signal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "messages/base/simd.hpp"
#include "tests/multiprocess/hosts/launch_fixture.hpp"
#include "tests/multiprocess/recovery/calm_run.hpp"
#include "tests/unit/hold_up.hpp"
#include "tests/words.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

const std::string four_stages = "stages = 4\n";
const std::string two_replicas = "stages = 2\nreplicas = 2\n";

/// Four processes, so that each of two nodes has two. Its steps are short, so there are twenty, the
/// most of which each has a line: what befalls it behind the fourth comes before the last.
std::string run_of(const std::filesystem::path& weights, const std::string& stages = four_stages) {
  return "[pipeline]\n" + stages +
         "micro_batches = 2\nthreads_per_stage = 1\n"
         "[model]\nname = \"small\"\n"
         "[data]\nsource = \"synthetic:3x48x48:10:48\"\n"
         "[optimizer]\nname = \"adam\"\nlr = 0.01\n"
         "[train]\nbatch_size = 8\nsteps = 20\neval = false\non_fault = \"recover\"\nsave = \"" +
         weights.string() + "\"\n";
}

/// Of the same run on this machine.
file_bytes weights_without_loss(const std::string& stages = four_stages) {
  const auto calm = with(
      split_words(stages == four_stages ? "--stages 4" : "--stages 2 --replicas 2"),
      split_words("--micro-batches 2 --threads-per-stage 1 --model small --data "
                  "synthetic:3x48x48:10:48 --optimizer adam --lr 0.01 --batch-size 8 --steps 20 "
                  "--no-eval"));
  return bytes_of(calm_run(TROUPE_PROGRAM, calm).weights());
}

/// Does something once, after the fourth step.
std::function<void(pid_t, std::string_view)> in_the_middle(bool& done,
                                                           std::function<void(pid_t)> act) {
  return [&done, act = std::move(act)](pid_t trainer, std::string_view line) {
    if (done || line.find("step 4/20") == std::string_view::npos) return;
    done = true;
    act(trainer);
  };
}

/// Four processes on alpha and beta, of which something happens to beta. `more`: for the program.
/// `silence`: in seconds.
program_outcome check_over_ssh(const test_hosts& hosts, const std::string& nodes,
                               const std::string& stages, std::function<void()> happens,
                               const words& more = {}, const std::string& silence = "3") {
  const auto calm = weights_without_loss(stages);
  const auto file =
      write_config(hosts / "run.toml", ssh_cluster(hosts, "silence = " + silence + "\n") + nodes +
                                           run_of(hosts / "stormy.safetensors", stages));
  bool happened = false;
  const auto outcome = hosts.home().run(with(as_launched(file, {"--verbose"}), more),
                                        in_the_middle(happened, [&](pid_t) { happens(); }));
  CHECK(happened);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("the run goes on after step") ||
                              ContainsSubstring(" replayed from step "));
  CHECK(bytes_of(hosts / "stormy.safetensors") == calm);
  return outcome;
}

/// A trainer that is lost is started again. No checkpoint comes before the end.
words with_restarts(const test_hosts& hosts) {
  return {"--max-restarts",     "1",   "--checkpoint-dir", hosts / "checkpoints",
          "--checkpoint-every", "100", "--resume",         "auto"};
}

/// The trainer of a launch from home, which has started ssh.
pid_t trainer_of(const test_hosts& hosts) {
  const auto started = hosts.home().processes_with(hosts.ssh_config());
  REQUIRE_FALSE(started.empty());
  return parent_of(started.front().pid);
}

/// A run over two agents of this machine, of which `kill_one` kills something in the middle, to the
/// bits of a calm run. `more`: for its [cluster].
program_outcome run_on_agents(const std::function<void(const std::vector<pid_t>&)>& kill_one,
                              const std::string& more = "") {
  const scratch_folder folder;
  const auto calm = weights_without_loss();
  const auto file = write_config(
      folder / "run.toml", local_cluster + more + node_table("alpha", "") + node_table("beta", "") +
                               run_of(folder / "stormy.safetensors"));
  bool killed = false;
  const auto outcome =
      run_program({"--config", file, "--verbose"}, in_the_middle(killed, [&](pid_t trainer) {
                    const auto agents = children_of(trainer);
                    REQUIRE(agents.size() == 2);
                    kill_one(agents);
                  }));
  CHECK(killed);
  CHECK(outcome.code == 0);
  CHECK(bytes_of(folder / "stormy.safetensors") == calm);
  return outcome;
}

/// Kills the first of the agents of a trainer that has so many.
void kill_agent(pid_t trainer, std::size_t count) {
  const auto agents = children_of(trainer);
  REQUIRE(agents.size() == count);
  kill(agents.front(), SIGKILL);
}

/// "replace": what either host sends to the other arrives nowhere from now on; "del": it arrives
/// again.
void set_ways(const test_hosts& hosts, const std::string& what) {
  for (const auto from : {std::size_t{0}, std::size_t{1}}) {
    words line{"ip", "neigh", what, hosts.at(1 - from).address(), "dev", "eth0"};
    if (what == "replace") line = with(line, {"lladdr", "02:00:00:00:00:99"});
    CHECK(hosts.at(from).run(line).code == 0);
  }
}

}  // namespace

TEST_CASE("A stage that an agent has started is replaced on its node", "[untimed]") {
  const auto outcome = run_on_agents([](const std::vector<pid_t>& agents) {
    const auto stages = children_of(agents.back());
    REQUIRE(stages.size() == 2);
    kill(stages.front(), SIGKILL);
  });
  CHECK_THAT(outcome.err, ContainsSubstring("was killed by signal 9 (SIGKILL)"));
  CHECK_THAT(outcome.err, ContainsSubstring("; it is replaced"));
  CHECK_THAT(outcome.err, ContainsSubstring(".2 on node"));
  CHECK_THAT(outcome.err, !ContainsSubstring("takes the place of"));
}

TEST_CASE("A run does not miss its zygotes", "[untimed]") {
  const auto outcome = run_on_agents([](const std::vector<pid_t>& agents) {
    const auto trainer = parent_of(agents.front());
    for (const auto keeper : {trainer, agents.front(), agents.back()}) {
      const auto zygote = zygote_of(keeper);
      CHECK((zygote != 0) == has_zygotes);
      if (zygote != 0) kill(zygote, SIGKILL);
    }
    kill(children_of(agents.back()).front(), SIGKILL);  // the next one is executed
  });
  CHECK_THAT(outcome.err, ContainsSubstring("was killed by signal 9 (SIGKILL)"));
  CHECK_THAT(outcome.err, ContainsSubstring("; it is replaced"));
}

TEST_CASE("An agent that takes long to start a process listens meanwhile, and is not lost") {
  if (!has_zygotes) SKIP("no zygote that could be stopped, under a sanitizer");
  const auto outcome = run_on_agents(
      [](const std::vector<pid_t>& agents) {
        const auto zygote = zygote_of(agents.back());
        REQUIRE(zygote != 0);
        kill(zygote, SIGSTOP);  // a copy of it is waited for, longer than silence
        kill(children_of(agents.back()).front(), SIGKILL);
      },
      "silence = 2\n");
  CHECK_THAT(outcome.err, ContainsSubstring("was killed by signal 9 (SIGKILL)") &&
                              ContainsSubstring("; it is replaced") &&
                              ContainsSubstring(".2 on node") &&
                              !ContainsSubstring("takes the place of") &&
                              !ContainsSubstring("its agent has been silent"));
}

TEST_CASE("The stages of an agent that is lost go on together on another node", "[untimed]") {
  const auto outcome =
      run_on_agents([](const std::vector<pid_t>& agents) { kill(agents.front(), SIGKILL); });
  // Two neighbours at once, whose versions are on the other node.
  CHECK_THAT(outcome.err, ContainsSubstring(".2 takes the place of stage-") &&
                              ContainsSubstring(" are replayed from step ") &&
                              ContainsSubstring(" computed 0 actions again"));
  CHECK(children_of(getpid()).empty());
}

TEST_CASE("The stages of an agent that a signal asks to end go on together on another node",
          "[untimed]") {
  const auto outcome =
      run_on_agents([](const std::vector<pid_t>& agents) { kill(agents.front(), SIGTERM); });
  CHECK_THAT(outcome.err, ContainsSubstring("warning: node ") &&
                              ContainsSubstring(": its agent has ended: signal 15 (SIGTERM) asked "
                                                "it to end; its processes are ended with it; "));
  CHECK_THAT(outcome.err, ContainsSubstring(".2 takes the place of stage-") &&
                              ContainsSubstring(" are replayed from step ") &&
                              ContainsSubstring(" computed 0 actions again"));
  CHECK(children_of(getpid()).empty());
}

TEST_CASE("An agent that is stopped, and does not end a lost stage, is done without", "[untimed]") {
  const auto outcome = run_on_agents(
      [](const std::vector<pid_t>& agents) {
        const auto stages = children_of(agents.front());
        REQUIRE(stages.size() == 2);
        kill(agents.front(), SIGSTOP);
        kill(stages.front(), SIGKILL);
      },
      "silence = 3\n");
  CHECK_THAT(outcome.err,
             ContainsSubstring(".2 takes the place of stage-") && ContainsSubstring(" on node "));
  CHECK(children_of(getpid()).empty());
}

TEST_CASE("A stage that goes on with other instructions of a processor is warned of", "[untimed]") {
  const scratch_folder folder;
  const auto node = [](const std::string& name, const std::string& instructions) {
    return node_table(name, "", "environment = [\"ATEN_CPU_CAPABILITY=" + instructions + "\"]\n");
  };
  const auto file = write_config(folder / "run.toml", local_cluster + node("alpha", "avx2") +
                                                          node("beta", "default") +
                                                          run_of(folder / "weights.safetensors"));
  bool killed = false;
  const auto outcome = run_program(
      {"--config", file}, in_the_middle(killed, [](pid_t trainer) { kill_agent(trainer, 2); }));
  CHECK(killed);
  CHECK(outcome.code == 0);
  const bool is_said =
      std::regex_search(outcome.err, std::regex("warning: stage-.* computes on .* \\(LibTorch: .*"
                                                "\\), and its stage began on .* \\(LibTorch: .*"
                                                "\\): sums may differ in their bits"));
  CHECK(is_said == has(simd::avx2));  // else LibTorch has one way only
}

TEST_CASE("A launch whose launcher is killed goes on by the command that it has printed",
          "[untimed]") {
  const scratch_folder folder;
  const auto file = write_config(
      folder / "run.toml", local_cluster + node_table("alpha", "") + node_table("beta", "") +
                               run_of(folder / "resumed.safetensors") + "[checkpoint]\ndir = \"" +
                               (folder / "kept").string() + "\"\nevery = \"2\"\n");
  bool killed = false;  // once the checkpoint of step 2 is whole: that of step 4 waits for it
  const auto lost = run_other(
      TROUPE_COMMAND, {"launch", file},
      at_line("step 7/", [&killed](pid_t launcher) { killed = ::kill(launcher, SIGKILL) == 0; }));
  REQUIRE(killed);
  CHECK(lost.signal == SIGKILL);
  std::smatch found;
  REQUIRE(std::regex_search(lost.err, found,
                            std::regex("to resume this run from its last checkpoint, if it is "
                                       "lost: (.*)")));
  const auto resumed = run_other("/bin/sh", {"-c", found[1].str()});
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step "));
  CHECK(bytes_of(folder / "resumed.safetensors") == weights_without_loss());
}

TEST_CASE("A run whose only agent is lost ends, which says so", "[untimed]") {
  const scratch_folder folder;
  const auto file = write_config(folder / "run.toml", local_cluster + node_table("alpha", "") +
                                                          run_of(folder / "weights.safetensors"));
  bool killed = false;
  const auto outcome = run_program(
      {"--config", file}, in_the_middle(killed, [](pid_t trainer) { kill_agent(trainer, 1); }));
  CHECK(killed);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring("node alpha: its agent was killed by signal 9"));
}

TEST_CASE("Stages whose versions are all on one host are said before the first step", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha"});
  const auto& address = hosts.at(0).address();
  const auto file =
      write_config(hosts / "run.toml",
                   ssh_cluster(hosts) + node_table("alpha", address) + node_table("beta", address) +
                       small_run(hosts / "weights.safetensors") + "on_fault = \"recover\"\n");
  const auto outcome = hosts.home().run(as_launched(file));
  CHECK(outcome.code == 0);
  const auto said = outcome.err.find(
      "warning: all copies of the versions of stage-0 (nodes alpha "
      "and beta, host " +
      address + ")");
  REQUIRE(said != std::string::npos);
  CHECK(said < outcome.err.find("step 1/"));
}

TEST_CASE("A replacement that is stopped on its host before it has joined is replaced in seconds") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto nodes = node_table("alpha", hosts.at(0).address()) +
                     node_table("beta", hosts.at(1).address(),
                                "environment = [\"TROUPE_STOPPED_STAGE=stage-2.2\"]\n");
  std::optional<hold_up> held;
  const auto outcome = check_over_ssh(hosts, nodes, four_stages, [&] {
    kill_on(hosts.at(1), "--node-name stage-2");
    held.emplace();
  });
  CHECK_THAT(outcome.err, ContainsSubstring("stage-2.2 on node beta (10.77.0.3) was killed by "
                                            "signal 9 (SIGKILL): it had been stopped (SIGSTOP) for "
                                            "1 s, and had not joined the run; it is replaced") &&
                              !ContainsSubstring("takes the place of"));
  REQUIRE(held);
  CHECK(seconds_to_go_on(outcome) < 10s + held->over(threads_of_an_end));
}

TEST_CASE("A host that is lost with all that runs there is done without", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto outcome = check_over_ssh(hosts, node_tables(hosts), four_stages,
                                      [&] { kill(hosts.at(1).first_process(), SIGKILL); });
  CHECK_THAT(outcome.err, ContainsSubstring(".2 takes the place of stage-") &&
                              ContainsSubstring(" are replayed from step ") &&
                              ContainsSubstring(" computed 0 actions again"));
  // The versions that they go on from were computed on the other host.
  CHECK_THAT(outcome.err, ContainsSubstring(" bytes of gradients and buffers instead of ") &&
                              !ContainsSubstring("its versions travel whole"));
  CHECK(hosts.at(0).left_after(2s).empty());
}

TEST_CASE("A host that is lost with the data is done without, and another one reads them",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto outcome =
      check_over_ssh(hosts, node_tables(hosts), four_stages,
                     [&] { kill(hosts.at(1).first_process(), SIGKILL); }, {"--data-node", "beta"});
  CHECK_THAT(outcome.err, ContainsSubstring(".2 reads the data from here on") &&
                              ContainsSubstring(" are replayed from step ") &&
                              ContainsSubstring(" computed 0 actions again"));
}

TEST_CASE("A host that is lost with a whole replica is done without", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  std::string nodes;
  for (std::size_t i = 0; i < 2; ++i)
    nodes += node_table(hosts.at(i).name(), hosts.at(i).address(),
                        "replicas = [" + std::to_string(i) + "]\n");
  check_over_ssh(hosts, nodes, two_replicas, [&] { kill(hosts.at(1).first_process(), SIGKILL); });
}

TEST_CASE("A host that is cut off is done without, and what runs there ends by itself") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  std::optional<hold_up> held;
  const auto cut_off = [&] {
    hosts.at(1).cut_off();
    held.emplace();
  };
  const auto outcome = check_over_ssh(hosts, node_tables(hosts), four_stages, cut_off, {}, "9");
  // Its agent, which says nothing, is not waited for until it counts as lost.
  REQUIRE(held);
  CHECK(seconds_to_go_on(outcome) < 7s + held->over(threads_of_an_end));
  CHECK_THAT(outcome.err,
             ContainsSubstring("node beta (10.77.0.3): its agent has not ended stage-") &&
                 ContainsSubstring(" within 1.5 s; all processes there are given up"));
  // Beta's sshd waits for a connection that TCP has not given up.
  CHECK(programs_left(hosts, 20s) == "");
}

TEST_CASE("A host that is cut off is not waited for where understudies can take all its places",
          "[prompt]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto outcome = check_over_ssh(hosts, node_tables(hosts), four_stages,
                                      [&] { hosts.at(1).cut_off(); }, {"--understudies", "2"});
  CHECK_THAT(outcome.err,
             ContainsSubstring("node beta (10.77.0.3): its agent, or the ssh to it, has not "
                               "answered within 0.35 s, as others have; all processes there are "
                               "given up; 2 stages are replaced") &&
                 ContainsSubstring("understudy-1 takes the place of stage-2 on node alpha") &&
                 ContainsSubstring("understudy-2 takes the place of stage-3 on node alpha") &&
                 ContainsSubstring("stage-2 and stage-3 are replayed from step ") &&
                 ContainsSubstring(" computed 0 actions again") &&
                 !ContainsSubstring("has not ended"));
  CHECK(programs_left(hosts, 20s) == "");
}

TEST_CASE("A stage that is stopped costs no host whose agent answers, also beside understudies",
          "[prompt]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto outcome = check_over_ssh(hosts, node_tables(hosts), four_stages,
                                      [&] { kill_on(hosts.at(1), "--node-name stage-2", SIGSTOP); },
                                      {"--understudies", "2"});
  CHECK_THAT(outcome.err,
             ContainsSubstring("understudy-1 takes the place of stage-2 on node alpha") &&
                 ContainsSubstring("stage-2 is replayed from step ") &&
                 !ContainsSubstring("given up"));
}

TEST_CASE("A launch over hosts whose trainer is killed goes on after its last step", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto outcome = check_over_ssh(
      hosts, node_tables(hosts), four_stages, [&] { kill(trainer_of(hosts), SIGKILL); },
      with_restarts(hosts));
  CHECK_THAT(outcome.err, ContainsSubstring("the trainer was killed by signal 9 (SIGKILL)") &&
                              ContainsSubstring(": it is started again (restart 1 of 1)") &&
                              ContainsSubstring(", from versions that were kept in memory") &&
                              !ContainsSubstring("no process keeps versions"));
  const std::string mark = "the run goes on after step ";
  const auto at = outcome.err.find(mark);
  REQUIRE(at != std::string::npos);
  CHECK(std::stoi(outcome.err.substr(at + mark.size())) >= 3);
  CHECK(programs_left(hosts, 5s) == "");
}

TEST_CASE("Stages that others start again go on after a lost trainer's last step", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto secret = write_secret(hosts / "secret");
  const std::string door = "10.77.0.1:4711";
  const auto file = write_config(
      hosts / "run.toml", awaited_cluster(door, secret, "program = \"" TROUPE_PROGRAM "\"\n") +
                              run_of(hosts / "stormy.safetensors"));
  std::vector<std::unique_ptr<running_program>> stages;
  bool killed = false;
  const auto on_line = [&](pid_t, std::string_view line) {
    for (std::size_t i = 0; i < 4; ++i)
      if (const auto name = "stage-" + std::to_string(i);
          line.find(name + " may join now") != std::string_view::npos)
        stages.push_back(std::make_unique<running_program>(
            hosts.at(i / 2), words{TROUPE_COMMAND, "join", door, "--name", name, "--secret-file",
                                   secret, "--config", file}));
    if (killed || line.find("step 4/20") == std::string_view::npos) return;
    killed = true;
    for (const auto& each : hosts.home().processes_with("--config"))
      if (const auto children = children_of(each.pid); children.size() == 2) {
        kill(children.back(), SIGKILL);  // begun, and listed, after what outlives it
        break;
      }
  };
  const auto outcome = hosts.home().run(as_launched(file, with_restarts(hosts)), on_line);
  CHECK(killed);
  CHECK(outcome.code == 0);
  CHECK(stages.size() == 8);
  CHECK_THAT(outcome.err, ContainsSubstring(", from versions that were kept in memory") &&
                              !ContainsSubstring("no process keeps versions"));
  CHECK(bytes_of(hosts / "stormy.safetensors") == weights_without_loss());
}

TEST_CASE("Over hosts stages that keep each other's versions are replayed with --max-restarts",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto kill_both = [&] {
    const auto one = hosts.at(0).processes_with("stage-0");
    const auto other = hosts.at(1).processes_with("stage-2");
    REQUIRE(one.size() == 1);
    REQUIRE(other.size() == 1);
    for (const auto& each : {one.front(), other.front()}) kill(each.pid, SIGKILL);
  };
  const auto outcome =
      check_over_ssh(hosts, node_tables(hosts), four_stages, kill_both, with_restarts(hosts));
  CHECK_THAT(outcome.err, ContainsSubstring("stage-0 and stage-2 are replayed from step ") &&
                              ContainsSubstring(" computed 0 actions again"));
}

TEST_CASE("Of two hosts that lose sight of each other for a while, one has its stages replaced") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto calm = weights_without_loss();
  const auto file = write_config(hosts / "run.toml", ssh_cluster(hosts) + node_tables(hosts) +
                                                         run_of(hosts / "stormy.safetensors"));
  bool cut = false, healed = false;
  const auto on_line = [&](pid_t, std::string_view line) {
    const bool now = !cut && line.find("step 4/20") != std::string_view::npos;
    const bool then = !healed && line.find("which others have not") != std::string_view::npos;
    cut = cut || now;
    healed = healed || then;
    if (!now && !then) return;
    set_ways(hosts, now ? "replace" : "del");
  };
  const auto outcome = hosts.home().run(as_launched(file, {"--verbose"}), on_line);
  CHECK(cut);
  CHECK(healed);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("has lost sight of"));
  CHECK(bytes_of(hosts / "stormy.safetensors") == calm);
}

TEST_CASE("Two hosts that lose sight of each other end a run that does not recover") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto file = write_config(hosts / "run.toml", ssh_cluster(hosts) + node_tables(hosts) +
                                                         run_of(hosts / "stormy.safetensors"));
  const auto outcome =
      hosts.home().run(as_launched(file, {"--on-fault", "stop"}),
                       at_line("step 4/20", [&](pid_t) { set_ways(hosts, "replace"); }));
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(), ContainsSubstring("stage-") &&
                                      ContainsSubstring(" has lost sight of stage-") &&
                                      ContainsSubstring(", which others have not"));
  CHECK(programs_left(hosts, 5s) == "");
}
