// `troupe launch` over hosts with an sshd each: the bits of one machine, and nothing left on any
// host whatever dies.

#include <signal.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/multiprocess/hosts/launch_fixture.hpp"
#include "tests/multiprocess/recovery/calm_small_run.hpp"
#include "tests/unit/hold_up.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

void check_nothing_left(const test_hosts& hosts, std::size_t count = 2) {
  CHECK(anything_left(hosts, 2s, count) == "");
}

/// Each host reaches the trainer alone by the network of its address, and the other by another one.
void put_peers_apart(const test_hosts& hosts) {
  for (std::size_t i = 0; i < 2; ++i) {
    const auto own = hosts.at(i).address();
    const auto last = own.substr(own.rfind('.'));
    const std::string ip = "/usr/sbin/ip addr ";
    CHECK(hosts.at(i)
              .run({"sh", "-c",
                    ip + "flush dev eth0 scope global && " + ip + "add " + own +
                        " peer 10.77.0.1/32 dev eth0 && " + ip + "add 10.88.0" + last +
                        "/24 dev eth0"})
              .code == 0);
  }
}

}  // namespace

TEST_CASE("A launch over two hosts by ssh trains to the bits of a run on one", "[untimed]") {
  skip_without_hosts();
  const std::string network = GENERATE(as<std::string>{}, "sealed", "trusted");
  const test_hosts hosts({"alpha", "beta"});
  const auto alone = weights_of_small_run();
  const std::string carrier = network == "sealed" ? "sealed tcp" : "trusted";
  const auto link = "[link]\nnetwork = \"" + network + "\"\n";
  const auto file =
      write_config(hosts / "run.toml", ssh_cluster(hosts) + node_tables(hosts) + link +
                                           small_run(hosts / "launched.safetensors"));
  const auto outcome = hosts.home().run({TROUPE_COMMAND, "launch", file, "--", "--verbose"});
  REQUIRE(outcome.code == 0);
  CHECK_FALSE(alone.empty());
  CHECK(bytes_of(hosts / "launched.safetensors") == alone);
  CHECK_THAT(outcome.err, ContainsSubstring("stage-0 (alpha, 10.77.0.2"));
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1 (beta, 10.77.0.3"));
  CHECK_THAT(outcome.err, ContainsSubstring("): " + carrier));
  const bool is_warned = outcome.err.find(
                             "the network is trusted: whoever reaches the ports that "
                             "UCX opens can write") != std::string::npos;
  CHECK(is_warned == (network == "trusted"));
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1 on node beta (10.77.0.3) exited with code 0"));
  check_nothing_left(hosts);
}

TEST_CASE("Replicas on two hosts train to the bits of replicas on one machine", "[untimed]") {
  skip_without_hosts();
  const bool whole_pipelines = GENERATE(false, true);
  const test_hosts hosts({"alpha", "beta"});
  const auto run = [&](const char* weights) {
    auto text = small_run(hosts / weights);
    return text.insert(text.find("stages = 2"), "replicas = 2\n");
  };
  const auto alone = weights_of_small_run("--replicas 2");
  if (whole_pipelines) put_peers_apart(hosts);
  const auto node = [&](std::size_t i) {
    const auto more = "replicas = [" + std::to_string(i) + "]\n";
    return node_table(hosts.at(i).name(), hosts.at(i).address(), whole_pipelines ? more : "");
  };
  const auto file = write_config(
      hosts / "run.toml", ssh_cluster(hosts) + node(0) + node(1) + run("launched.safetensors"));
  const auto outcome = hosts.home().run(as_launched(file, {"--verbose"}));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("stage-0 of replica 1 (" +
                                            std::string(whole_pipelines ? "beta" : "alpha")));
  CHECK_THAT(outcome.err,
             ContainsSubstring("stage-1 of replica 0 (" +
                               std::string(whole_pipelines ? "alpha, 10.88.0.2" : "beta, 10.77")));
  CHECK(whole_pipelines ==
        (outcome.err.find("stages listen in the network 10.88.0.0/24, which "
                          "their hosts share and the trainer (10.77.0.1)") != std::string::npos));
  // Stages of one host meet inside it.
  const std::regex edge("-> stage-1 of replica 0 \\([^)]*\\): (shm|sealed tcp)");
  std::smatch found;
  REQUIRE(std::regex_search(outcome.err, found, edge));
  CHECK(found.str(1) == (whole_pipelines ? "shm" : "sealed tcp"));
  CHECK_FALSE(alone.empty());
  CHECK(bytes_of(hosts / "launched.safetensors") == alone);
  check_nothing_left(hosts);
}

TEST_CASE("A launch's secret is in no argument or environment, and a second Ctrl-C ends it") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const std::string word = "known-to-all-of-them";
  const auto secret = write_secret(hosts / "secret", word);
  const auto file = write_config(
      hosts / "run.toml", ssh_cluster(hosts) + node_tables(hosts) + endless_run(hosts / "steps") +
                              "[link]\nsecret_file = \"" + secret.string() + "\"\n");
  std::size_t looked_at = 0;
  const auto interrupt = [&] {
    for (const auto& each : hosts.home().processes_with("--config")) kill(each.pid, SIGINT);
  };
  const auto outcome =
      hosts.home().run(as_launched(file, {"--verbose"}), [&](pid_t, std::string_view line) {
        if (line.find("interrupt again to end at once") != std::string_view::npos) interrupt();
        if (looked_at > 0 || line.find("-> stage-1") == std::string_view::npos) return;
        CHECK(wait_for_content(hosts / "steps"));
        std::string digits;
        for (const char each : word) {
          constexpr std::string_view hexadecimal = "0123456789abcdef";
          digits += hexadecimal[static_cast<unsigned char>(each) >> 4];
          digits += hexadecimal[static_cast<unsigned char>(each) & 15];
        }
        for (const auto* host : {&hosts.home(), &hosts.at(0), &hosts.at(1)}) {
          for (const auto& each : host->processes()) {
            const auto process = std::filesystem::path("/proc") / std::to_string(each.pid);
            const auto all = bytes_of(process / "environ") + bytes_of(process / "cmdline");
            INFO(each.command);
            CHECK(all.find(word) == std::string::npos);
            CHECK(all.find(digits) == std::string::npos);
            ++looked_at;
          }
        }
        // No step ends any more: only a second Ctrl-C ends the run with this code.
        for (const auto& each : hosts.at(1).processes_with("stage-1")) kill(each.pid, SIGSTOP);
        interrupt();
      });
  CHECK(looked_at >= 8);
  CHECK(outcome.err.find(word) == std::string::npos);
  CHECK(outcome.code == 130);
  CHECK_THAT(outcome.err, !ContainsSubstring("is gone"));
  check_nothing_left(hosts);
}

TEST_CASE("Whatever is killed of a launch over ssh, nothing is left on any host in two seconds") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  for (const std::string victim :
       {"launcher", "ssh", "agent", "agent by SIGINT", "sshd", "stage-1"}) {
    INFO(victim);
    const auto steps = hosts / ("steps before the end of " + victim);
    const auto file = write_config(hosts / "run.toml",
                                   ssh_cluster(hosts) + node_tables(hosts) + endless_run(steps));
    bool killed = false;
    const auto outcome =
        hosts.home().run(as_launched(file), at_line("-> stage-1", [&](pid_t) {
                           killed = true;
                           CHECK(wait_for_content(steps));
                           if (victim == "launcher") kill_on(hosts.home(), "--config");
                           if (victim == "ssh") kill_on(hosts.home(), hosts.at(1).address());
                           if (victim == "agent") kill_on(hosts.at(1), "--agent");
                           if (victim == "agent by SIGINT") kill_on(hosts.at(1), "--agent", SIGINT);
                           if (victim == "sshd") {
                             for (const auto& each : hosts.at(1).processes_with("sshd"))
                               kill(each.pid, SIGKILL);
                           }
                           if (victim == "stage-1") kill_on(hosts.at(1), "stage-1");
                         }));
    CHECK(killed);
    check_nothing_left(hosts);
    if (victim == "launcher") continue;
    CHECK(outcome.code == 1);
    CHECK_THAT(outcome.last_line(), ContainsSubstring("node beta (10.77.0.3)"));
    if (victim == "stage-1")
      CHECK_THAT(outcome.last_line(),
                 ContainsSubstring("stage-1 on node beta (10.77.0.3) was killed by signal 9"));
    if (victim == "agent by SIGINT")
      CHECK_THAT(outcome.last_line(),
                 ContainsSubstring("node beta (10.77.0.3): its agent has ended: signal 2 (SIGINT) "
                                   "asked it to end; its processes are ended with it"));
  }
}

TEST_CASE("A run whose agent, ssh or sshd is stopped ends soon, and says whose") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta", "gamma"});
  auto run = small_run(hosts / "weights.safetensors");
  run.replace(run.find("stages = 2"), 10, "stages = 3");
  const auto file = write_config(
      hosts / "run.toml", ssh_cluster(hosts, "silence = 60\n") + node_tables(hosts, 3) + run);
  std::vector<pid_t> stopped;
  const auto stop_all = [&](const test_host& host, const std::string& word) {
    const auto found = host.processes_with(word);
    INFO(word << "\n" << told_of(host.processes()));
    CHECK_FALSE(found.empty());
    for (const auto& each : found) {
      stopped.push_back(each.pid);
      kill(each.pid, SIGSTOP);
    }
  };
  std::chrono::steady_clock::time_point first_word;
  std::optional<hold_up> held;
  const auto outcome = hosts.home().run(as_launched(file), [&](pid_t, std::string_view line) {
    if (!held && line.find("does not answer") != std::string_view::npos) {
      first_word = std::chrono::steady_clock::now();
      held.emplace();
    }
    if (!stopped.empty() || line.find("-> stage-2") == std::string_view::npos) return;
    stop_all(hosts.at(0), "--agent");
    stop_all(hosts.at(1), "sshd");
    stop_all(hosts.home(), hosts.at(2).address());
  });
  const auto waited = std::chrono::steady_clock::now() - first_word;
  for (const auto each : stopped) kill(each, SIGCONT);
  CHECK(outcome.code == 0);
  // The five seconds, and an end of the run that may be held up on a busy machine.
  REQUIRE(held);
  CHECK(waited < 7s + held->over(threads_of_an_end));
  CHECK_FALSE(bytes_of(hosts / "weights.safetensors").empty());
  for (const auto* node : {"alpha (10.77.0.2)", "beta (10.77.0.3)", "gamma (10.77.0.4)"}) {
    const auto named = "node " + std::string(node) + ": its agent, or the ssh to it, ";
    CHECK_THAT(outcome.err, ContainsSubstring(named + "does not answer; at the end of the run it "
                                                      "is waited for 5 s at most"));
    CHECK_THAT(outcome.err, ContainsSubstring("warning: " + named +
                                              "has not answered for 5 s at "
                                              "the end of the run; its "
                                              "processes may be left there"));
  }
  check_nothing_left(hosts, 3);
}

TEST_CASE("A stage that falls silent while it is built is said with its node and host") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto file = write_config(
      hosts / "run.toml", ssh_cluster(hosts) + node_tables(hosts) + endless_run(hosts / "steps"));
  bool stopped = false;
  const auto outcome = hosts.home().run(as_launched(file), [&](pid_t, std::string_view line) {
    if (stopped || line.find("-> stage-1") == std::string_view::npos) return;
    for (const auto& each : hosts.at(1).processes_with("stage-1")) {
      stopped = true;
      ::kill(each.pid, SIGSTOP);
    }
  });
  CHECK(stopped);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring("stage-1 on node beta (10.77.0.3) is gone: it was silent for "));
  CHECK(programs_left(hosts, 2s) == "");
}

TEST_CASE("A host that the launcher does not reach any more ends its processes by itself") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto file =
      write_config(hosts / "run.toml", ssh_cluster(hosts, "silence = 2\n") + node_tables(hosts) +
                                           endless_run(hosts / "steps"));
  bool cut = false;
  const auto outcome = hosts.home().run(
      as_launched(file), at_line("-> stage-1", [&](pid_t) {
        cut = true;
        CHECK(wait_for_content(hosts / "steps"));
        CHECK(hosts.home().run({"/usr/sbin/ip", "link", "set", "to-beta", "down"}).code == 0);
      }));
  CHECK(cut);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring("node beta (10.77.0.3)") &&
                 ContainsSubstring("; see whether its host is up and reached from here (ip link"));
  CHECK(told_of(hosts.home().left_after(2s)) == "");
  CHECK(told_of(hosts.at(0).left_after(2s)) == "");
  // Its sshd waits for a connection that TCP has not given up.
  CHECK(programs_left(hosts, 5s) == "");
}

/// A launch whose stages others start, each on the host of its number, as soon as it says that they
/// may join: also those in the places of lost ones. `on_line`: sees what the trainer says.
struct joined_launch {
  joined_launch(const test_hosts& hosts, const std::string& run,
                const std::function<void(std::string_view)>& on_line = {},
                const std::string& cluster = "") {
    const auto secret = write_secret(hosts / "secret");
    const auto more = "program = \"" TROUPE_PROGRAM "\"\n" + cluster;
    const auto file =
        write_config(hosts / "run.toml", awaited_cluster("10.77.0.1:4711", secret, more) + run);
    trainer = hosts.home().run(as_launched(file), [&](pid_t, std::string_view line) {
      static const std::regex invitation(
          "(stage-([01])[.0-9]*) may join now: troupe join 10\\.77\\.0\\.1:4711 --name \\1 ");
      std::match_results<std::string_view::const_iterator> invited;
      if (std::regex_search(line.begin(), line.end(), invited, invitation)) {
        const std::vector<std::string> words{TROUPE_COMMAND,  "join",         "10.77.0.1:4711",
                                             "--name",        invited.str(1), "--secret-file",
                                             secret.string(), "--config",     file};
        const auto& host = hosts.at(invited.str(2) == "0" ? 0 : 1);
        stages.push_back(std::make_unique<running_program>(host, words));
      }
      if (on_line) on_line(line);
    });
  }

  program_outcome trainer;
  std::vector<std::unique_ptr<running_program>> stages;
};

TEST_CASE("Stages that others start with troupe join train to the same bits", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto alone = weights_of_small_run();
  const joined_launch launch(hosts, small_run(hosts / "launched.safetensors"));
  CHECK(launch.trainer.code == 0);
  REQUIRE(launch.stages.size() == 2);
  for (const auto& each : launch.stages) CHECK(each->end().code == 0);
  CHECK_FALSE(alone.empty());
  CHECK(bytes_of(hosts / "launched.safetensors") == alone);
  check_nothing_left(hosts);
}

TEST_CASE("Stages that others start listen in the network that their hosts share", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  put_peers_apart(hosts);
  const joined_launch launch(hosts, small_run(hosts / "launched.safetensors"));
  CHECK(launch.trainer.code == 0);
  CHECK_THAT(launch.trainer.err,
             ContainsSubstring("stages listen in the network 10.88.0.0/24, which their hosts share "
                               "and the trainer (10.77.0.1) is not in"));
  REQUIRE(launch.stages.size() == 2);
  for (const auto& each : launch.stages) CHECK(each->end().code == 0);
  CHECK_FALSE(bytes_of(hosts / "launched.safetensors").empty());
  check_nothing_left(hosts);
}

TEST_CASE("A stage that is started in the place of a lost one listens in the run's network",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto run = [&](const char* weights) {
    // So many steps, of so large images, that they are not over before the kill.
    auto text = small_run(hosts / weights) + "on_fault = \"recover\"\n";
    const std::string epochs = "epochs = 1\n", images = "3x32x32";
    text.replace(text.find(images), images.size(), "3x64x64");
    return text.replace(text.find(epochs), epochs.size(), "steps = 20\n");
  };
  const auto alone =
      run_program({"--config", write_config(hosts / "plain.toml", run("plain.safetensors"))});
  REQUIRE(alone.code == 0);
  put_peers_apart(hosts);
  bool lost = false;
  const auto on_line = [&](std::string_view line) {
    if (lost || line.find("step 3/20") == std::string_view::npos) return;
    lost = true;
    for (const auto& each : hosts.at(1).processes_with(TROUPE_PROGRAM)) kill(each.pid, SIGKILL);
  };
  const joined_launch launch(hosts, run("launched.safetensors"), on_line);
  CHECK(lost);
  CHECK(launch.trainer.code == 0);
  CHECK_THAT(launch.trainer.err, ContainsSubstring("stages listen in the network 10.88.0.0/24") &&
                                     ContainsSubstring("stage-1 is replayed from step ") &&
                                     ContainsSubstring(" computed 0 actions again"));
  // The third would reach nobody but the trainer where it has joined from.
  REQUIRE(launch.stages.size() == 3);
  CHECK(launch.stages[0]->end().code == 0);
  static_cast<void>(launch.stages[1]->end());
  CHECK(launch.stages[2]->end().code == 0);
  CHECK_FALSE(bytes_of(hosts / "plain.safetensors").empty());
  CHECK(bytes_of(hosts / "plain.safetensors") == bytes_of(hosts / "launched.safetensors"));
  check_nothing_left(hosts);
}

TEST_CASE("Stages that others start listen in the network that the config names, or say why not",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  put_peers_apart(hosts);
  const std::string network = GENERATE(as<std::string>{}, "10.88.0.0/24", "10.99.0.0/16");
  const bool is_theirs = network.starts_with("10.88");
  const joined_launch launch(hosts, small_run(hosts / "launched.safetensors"), {},
                             "network = \"" + network + "\"\n");
  CHECK(launch.trainer.code == (is_theirs ? 0 : 2));
  if (!is_theirs)
    CHECK_THAT(launch.trainer.last_line(),
               ContainsSubstring("stage-0: network (in [cluster]) 10.99.0.0/16: no interface of "
                                 "alpha has an address in the network 10.99.0.0/16 (it has "));
  REQUIRE(launch.stages.size() == 2);
  for (const auto& each : launch.stages) CHECK(each->end().code == (is_theirs ? 0 : 1));
  check_nothing_left(hosts);
}

TEST_CASE("Stages that others start say that the trainer is gone, and where it was") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const joined_launch launch(hosts, endless_run(hosts / "steps"), [&](std::string_view line) {
    if (!line.starts_with("step ")) return;
    for (const auto& each : hosts.home().processes_with("--config")) kill(each.pid, SIGKILL);
  });
  REQUIRE(launch.stages.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto stage = launch.stages[i]->end();
    CHECK(stage.code == 1);
    CHECK_THAT(stage.last_line(),
               ContainsSubstring("stage-" + std::to_string(i) +
                                 ": the trainer at 10.77.0.1:4711 is gone (") &&
                   ContainsSubstring("), and this process ends with it; see there why, and join "
                                     "again when the run has been started again"));
    CHECK_THAT(stage.err, !ContainsSubstring("node 'trainer'"));
  }
  check_nothing_left(hosts);
}

TEST_CASE("Stages that others start and that do not reach each other are told where to listen",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  on_host(hosts.at(1), turned_away("from " + hosts.at(0).address(), "blackhole"));
  const joined_launch launch(hosts, small_run(hosts / "launched.safetensors"));
  CHECK(launch.trainer.code == 2);
  CHECK_THAT(launch.trainer.last_line(),
             ContainsSubstring("stage-0 cannot reach stage-1 at 10.77.0.3:") &&
                 ContainsSubstring(": no answer within 2.5 s") &&
                 ContainsSubstring("have stage-1 listen where the other stages reach it (troupe "
                                   "join --listen)"));
  REQUIRE(launch.stages.size() == 2);
  for (const auto& each : launch.stages) {
    const auto stage = each->end();
    CHECK(stage.code == 1);
    CHECK_THAT(stage.last_line(),
               ContainsSubstring(": the run has failed: stage-0 cannot reach stage-1"));
  }
  check_nothing_left(hosts);
}
