// Where the sockets of NCCL are in the processes of a run, whoever starts them: on loopback, except
// where the network is trusted and replicas of a stage are on different hosts. And what goes along
// edges by it.

#include <signal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/multiprocess/hosts/launch_fixture.hpp"
#include "tests/process_sockets.hpp"
#include "tests/words.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;
using lines = std::vector<std::string>;

const std::string as_set = "NCCL_SOCKET_IFNAME eth0, NCCL_COMM_ID unset";
const std::string on_loopback = "NCCL_SOCKET_IFNAME =lo, NCCL_COMM_ID unset";
const std::string by_nccl = "replicas sum their gradients by NCCL 2.28.9 in a fixed order\n";

/// What the first communicator of each process found; empty: none had one.
lines found_in(const std::filesystem::path& log) {
  lines all;
  std::ifstream in(log);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

/// Two stages of two replicas each.
std::string replicated_run(const std::filesystem::path& weights) {
  auto text = small_run(weights);
  return text.insert(text.find("stages = 2"), "replicas = 2\n");
}

/// For stage processes: an interface that leads away from the machine.
lines settings(const std::filesystem::path& log, const std::filesystem::path& worlds) {
  return {"NCCL_SOCKET_IFNAME=eth0", "FAKE_NCCL_LOG=" + log.string(),
          "FAKE_NCCL_WORLDS=" + worlds.string()};
}

/// Runs the program with these environment variables.
program_outcome run_with(const lines& variables, const lines& arguments,
                         const std::function<void(pid_t, std::string_view)>& on_line = {}) {
  std::string exports = "export";
  for (const auto& each : variables) exports += " " + each;
  return run_other("/bin/sh", {"-c", shell_line(exports + ";", arguments)}, on_line);
}

/// Of a [[node]].
std::string environment(const lines& variables) {
  std::string text = "environment = [";
  for (const auto& each : variables) text += "\"" + each + "\", ";
  return text + "]\n";
}

}  // namespace

TEST_CASE("Inside a machine NCCL's sockets keep to loopback, whatever starts the stages",
          "[untimed]") {
  const scratch_folder folder;
  const auto plain = write_config(folder / "plain.toml", replicated_run(folder / "plain"));
  const auto started = [&](const std::string& log, const lines& words) {
    const auto outcome = run_with(settings(folder / log, folder.path()), words);
    REQUIRE(outcome.code == 0);
    CHECK_THAT(outcome.err, ContainsSubstring(by_nccl));
    return found_in(folder / log);
  };
  CHECK(started("processes.log", {"--config", plain}) == lines(4, on_loopback));
  const auto weights = bytes_of(folder / "plain");
  CHECK_FALSE(weights.empty());
  CHECK(started("threads.log", {"--config", plain, "--stages-in", "threads"}) ==
        lines(1, on_loopback));
  CHECK(bytes_of(folder / "plain") == weights);

  const auto set = environment(settings(folder / "agents.log", folder.path()));
  const auto file = write_config(folder / "run.toml", local_cluster + node_table("alpha", "", set) +
                                                          node_table("beta", "", set) +
                                                          replicated_run(folder / "launched"));
  const auto outcome = run_program({"--config", file});
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring(by_nccl));
  CHECK(found_in(folder / "agents.log") == lines(4, on_loopback));
  CHECK(bytes_of(folder / "launched") == weights);
}

TEST_CASE("Stages in processes of their own send by NCCL, to the weights of links", "[untimed]") {
  const scratch_folder folder;
  const auto run = [&](const std::string& name, const lines& more, const lines& variables = {}) {
    const auto file = write_config(folder / (name + ".toml"), small_run(folder / name));
    return run_with(with(settings(folder / (name + ".log"), folder.path()), variables),
                    with({"--config", file}, more));
  };
  const auto links = run("links", {});
  REQUIRE(links.code == 0);
  const auto nccl = run("nccl", {"--edges", "nccl"});
  REQUIRE(nccl.code == 0);
  CHECK_THAT(nccl.err,
             ContainsSubstring("stages in different processes send each other activations and "
                               "gradients by NCCL 2.28.9\n"));
  CHECK(found_in(folder / "nccl.log") == lines(2, on_loopback));
  CHECK_FALSE(bytes_of(folder / "nccl").empty());
  CHECK(bytes_of(folder / "nccl") == bytes_of(folder / "links"));

  const auto dying = run("dying", {"--edges", "nccl"}, {"FAKE_NCCL_SCRIPT=ncclSend:7:die"});
  CHECK(dying.code == 1);
  CHECK_THAT(dying.err, ContainsSubstring("was killed by signal 9 (SIGKILL)"));
}

TEST_CASE("Stages in processes of their own send by UCX, to the weights of links", "[untimed]") {
  const scratch_folder folder;
  const auto run = [&](const std::string& name, const lines& more,
                       const std::string& model = "small",
                       const std::function<void(pid_t, std::string_view)>& on_line = {}) {
    const auto file = write_config(folder / (name + ".toml"), small_run(folder / name, model));
    return run_with({"LANG=C"}, with({"--config", file}, more), on_line);
  };
  REQUIRE(run("links", {}).code == 0);
  const auto ucx = run("ucx", {"--edges", "ucx"});
  REQUIRE(ucx.code == 0);
  CHECK_THAT(ucx.err, ContainsSubstring("stages in different processes send each other activations "
                                        "and gradients by UCX "));
  CHECK_FALSE(bytes_of(folder / "ucx").empty());
  CHECK(bytes_of(folder / "ucx") == bytes_of(folder / "links"));

  namespace sockets = messages::testing;
  const auto look_and_kill = [](pid_t program) {
    const auto stages = children_of(program);
    for (const auto stage : stages) {
      CHECK_FALSE(sockets::lines_of(stage, "unix", 6).empty());  // else nothing would be seen
      CHECK(sockets::ports_of(stage, {"tcp", "tcp6", "udp", "udp6"}).empty());
    }
    ::kill(stages.back(), SIGKILL);
  };
  const auto dying =
      run("dying", {"--edges", "ucx"}, "resnet18", at_line("step 1/3", look_and_kill));
  CHECK(dying.code == 1);
  CHECK_THAT(dying.err, ContainsSubstring("was killed by signal 9 (SIGKILL)"));
}

TEST_CASE("A run whose stages send by NCCL goes on after its trainer's last step") {
  const scratch_folder folder;
  const auto run = [&](const std::string& name, const lines& more,
                       const std::function<void(pid_t, std::string_view)>& on_line = {}) {
    auto text = small_run(folder / name, "resnet18");  // whose steps last longer than a kill
    const std::string length = "epochs = 1";
    text.replace(text.find(length), length.size(), "steps = 8");
    const auto file = write_config(folder / (name + ".toml"), text);
    const auto outcome = run_with(settings(folder / (name + ".log"), folder.path()),
                                  with({"--config", file, "--edges", "nccl"}, more), on_line);
    REQUIRE(outcome.code == 0);
    return outcome;
  };
  run("calm", {});
  const auto outcome = run("stormy",
                           {"--on-fault", "recover", "--max-restarts", "1", "--checkpoint-dir",
                            folder / "kept", "--checkpoint-every", "100", "--resume", "auto"},
                           at_line("step 4/8", [](pid_t watcher) {
                             for (const auto each : children_of(watcher))
                               if (!children_of(each).empty()) ::kill(each, SIGKILL);
                           }));
  CHECK_THAT(outcome.err, ContainsSubstring(", from versions that were kept in memory"));
  CHECK_FALSE(bytes_of(folder / "calm").empty());
  CHECK(bytes_of(folder / "stormy") == bytes_of(folder / "calm"));
}

TEST_CASE("A run whose NCCL finds no interface, or differs between replicas, ends with one line",
          "[untimed]") {
  const scratch_folder folder;
  const auto check_ended = [](const program_outcome& outcome, const std::string& why) {
    CHECK(outcome.code != 0);
    CHECK_THAT(outcome.last_line(), ContainsSubstring(why));
  };
  auto alone = settings(folder / "alone.log", folder.path());
  alone.push_back("FAKE_NCCL_SCRIPT='ncclGetUniqueId:1:fail=2,NET/Socket : no interface found'");
  const auto plain = write_config(folder / "plain.toml", replicated_run(folder / "plain"));
  check_ended(run_with(alone, {"--config", plain}),
              "NCCL cannot begin a communicator: unhandled system error (NET/Socket : no interface "
              "found); name a network interface that is up in NCCL_SOCKET_IFNAME");

  std::string nodes;
  for (const std::string replica : {"0", "1"}) {
    auto set = settings(folder / "mixed.log", folder.path());
    if (replica == "1") set.push_back("FAKE_NCCL_VERSION=22703");
    nodes += node_table("node-" + replica, "", environment(set) + "replicas = [" + replica + "]\n");
  }
  const auto mixed =
      write_config(folder / "mixed.toml", local_cluster + nodes + replicated_run(folder / "mixed"));
  const auto refused = run_program({"--config", mixed});
  check_ended(refused, "of replica 1 has NCCL 2.27.3 and stage-");
  check_ended(refused, "of replica 0 has NCCL 2.28.9; install the same on all machines");
}

TEST_CASE("Over hosts NCCL's sockets leave loopback if the network is trusted and replicas apart",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  struct way {
    std::string network;
    bool apart;  // the replicas of a stage
    std::string said;
    lines found;
  };
  const std::vector<way> ways{
      {"sealed", false, by_nccl, lines(4, on_loopback)},
      {"sealed", true, "their network is not declared trusted", {}},
      {"trusted", false, by_nccl, lines(4, on_loopback)},
      {"trusted", true, by_nccl, lines(4, as_set)},
  };
  file_bytes weights;
  for (const auto& [network, apart, said, found] : ways) {
    INFO(network << (apart ? ", apart" : ", together"));
    const std::string name = network + (apart ? "-apart" : "-together");
    const auto log = hosts / (name + ".log");
    std::string nodes;
    for (std::size_t i = 0; i < 2; ++i)
      nodes += node_table(hosts.at(i).name(), hosts.at(i).address(),
                          environment(settings(log, hosts / "")) +
                              (apart ? "replicas = [" + std::to_string(i) + "]\n" : ""));
    const auto file =
        write_config(hosts / (name + ".toml"), ssh_cluster(hosts) + nodes + "[link]\nnetwork = \"" +
                                                   network + "\"\n" + replicated_run(hosts / name));
    const auto outcome = hosts.home().run(as_launched(file));
    REQUIRE(outcome.code == 0);
    CHECK_THAT(outcome.err, ContainsSubstring(said));
    CHECK(found_in(log) == found);
    if (weights.empty()) weights = bytes_of(hosts / name);
    CHECK_FALSE(weights.empty());
    CHECK(bytes_of(hosts / name) == weights);
  }
}
