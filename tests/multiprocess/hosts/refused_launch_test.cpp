// What can be wrong with a host: one line that names it, says what and what to do, and nothing
// left.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <csignal>
#include <cstddef>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "messages/base/host_name.hpp"
#include "tests/multiprocess/hosts/launch_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

/// Launches over alpha and what `beta` says of the second node, and expects a refusal, said once:
/// before any stage is started, or by one. `doctor_too`: it is of beta before a stage is there.
void refuses(const test_hosts& hosts, const std::string& beta,
             const std::vector<std::string>& words, const std::string& more = "",
             bool doctor_too = true) {
  const auto file = write_config(
      hosts / "run.toml", ssh_cluster(hosts, more) + node_table("alpha", hosts.at(0).address()) +
                              beta + endless_run(hosts / "steps"));
  std::optional<running_program> doctor;  // beside the launch: mostly they wait
  if (doctor_too) doctor.emplace(hosts.home(), as_examined(file));
  const auto outcome = hosts.home().run(as_launched(file));
  CHECK(outcome.code == 2);
  CHECK(outcome.seconds < 20s);
  for (const auto& word : words) CHECK_THAT(outcome.last_line(), ContainsSubstring(word));
  CHECK(outcome.err.find(words.back()) == outcome.err.rfind(words.back()));  // once is enough
  if (doctor_too) {  // what keeps a node from being reached keeps doctor, too
    const auto examined = doctor->end();
    CHECK(examined.code == 2);
    for (const auto& word : words) CHECK_THAT(examined.out, ContainsSubstring(word));
    CHECK(std::regex_search(examined.out, std::regex("\n.*; not examined: .*beta\n$")));
  }
  CHECK(hosts.home().left_after(2s).empty());
  CHECK(hosts.at(0).left_after(2s).empty());
  CHECK(hosts.at(1).left_after(2s).empty());
}

/// Checks what is said where a stage on beta, or the trainer, cannot listen.
void refuses_to_listen(const test_hosts& hosts, const std::string& address) {
  const auto beta = node_table("beta", address);
  const std::string stage = "stage-1 on node beta (" + address + ")";
  refuses(
      hosts, node_table("beta", address, "network = \"10.99.0.0/16\"\n"),
      {stage,
       "network (in [[node]], or [cluster]) 10.99.0.0/16: no interface of beta has an address in "
       "the network 10.99.0.0/16 (it has 10.77.0.3",
       "); name a network with an address of that host"},
      "", false);
  refuses(hosts, beta,
          {"[cluster] network: the trainer: no interface of home has an address in the network "
           "10.99.0.0/16 (it has 10.77.0.1",
           "name a network with an address of that host"},
          "network = \"10.99.0.0/16\"\n");
  refuses(
      hosts, node_table("beta", address, "address = \"10.77.0.99\"\n"),
      {stage,
       "address (in [[node]]) 10.77.0.99: cannot listen at 10.77.0.99:0: Cannot assign requested "
       "address; no interface of beta has this address"},
      "", false);
  refuses(hosts, node_table("beta", address, "address = \"" + address + ":22\"\n"),  // sshd's
          {stage,
           "address (in [[node]]) 10.77.0.3:22: cannot listen at 10.77.0.3:22: Address already in "
           "use on beta; end the process that listens there"},
          "", false);
  refuses(hosts, beta + "[link]\nlisten = \"10.77.0.99:0\"\n",
          {"--listen ([link] listen) 10.77.0.99:0: the trainer cannot listen at 10.77.0.99:0: ",
           "no interface of home has this address"},
          "", false);
}

}  // namespace

// Another build and a name for 127.0.1.1 are among the mistakes of mistakes_test.cpp.
TEST_CASE("A host that cannot be launched on is refused by name, with cause and remedy",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto address = hosts.at(1).address();
  const auto beta = node_table("beta", address);
  const std::string node = "node beta (" + address + "): ";

  hosts.write_ssh_config(true, false);
  refuses(hosts, beta, {"its host key is unknown to ssh", "connect once by hand"});
  hosts.write_ssh_config(false, true);
  refuses(hosts, beta, {"it refuses our key", "authorized_keys"});
  // What can be told here is told before any host is asked.
  refuses(hosts, beta + "[checkpoint]\ndir = \"/proc/nowhere\"\n",
          {"checkpoint.dir: /proc/nowhere: no folder can be made there"}, "", false);
  hosts.write_ssh_config();

  refuses(hosts, node_table("beta", "10.77.0.99"),
          {"node beta (10.77.0.99): ", "there is no route to it"});
  refuses(hosts, node_table("beta", "nowhere.invalid"),
          {"node beta (nowhere.invalid): ", "stands for no address here", "[link] listen"});
  refuses(hosts, node_table("beta", address, "program = \"/nowhere/trainer\"\n"),
          {node + "the program /nowhere/trainer cannot be started there", "copy it to that host"});
  refuses(hosts, node_table("beta", address, "working_folder = \"/nowhere\"\n"),
          {node + "stage-1 cannot be started in its working folder /nowhere: No such file",
           "make that folder there, or name another one (working_folder of its [[node]])"},
          "", false);
  refuses(hosts, node_table("beta", address, "program = \"/bin/true\"\n"),
          {node + "the program /bin/true exited with code 0 without having answered as an agent",
           "name the path of the one that runs here, " TROUPE_PROGRAM
           ", with `program` in its [[node]]"});
  refuses_to_listen(hosts, address);

  // How many cores it has is known when its agent answers.
  const std::string many =
      "[[node]]\nname = \"beta\"\nhost = \"" + address + "\"\nthreads = 4096\n";
  if (std::thread::hardware_concurrency() < 4096 / 32)
    refuses(hosts, many,
            {node + "threads in its [[node]]: 4096 threads of one process are too many for "}, "",
            false);
}

TEST_CASE("Of two stages that refuse what they are told each is said once, the first one last",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const std::string nowhere = "network = \"10.99.0.0/16\"\n";
  const auto file = write_config(
      hosts / "run.toml", ssh_cluster(hosts) + node_table("alpha", hosts.at(0).address(), nowhere) +
                              node_table("beta", hosts.at(1).address(), nowhere) +
                              endless_run(hosts / "steps"));
  const auto outcome = hosts.home().run({TROUPE_COMMAND, "launch", file});
  CHECK(outcome.code == 2);
  CHECK_THAT(outcome.last_line(), ContainsSubstring("exited with code 2: stage-"));
  for (const std::string name : {"alpha", "beta"}) {
    const auto told = "no interface of " + name;
    CHECK(outcome.err.find(told) == outcome.err.rfind(told));
    const std::regex line("stage-[01] on node " + name + " [^\n]* exited with code 2([^\n]*)");
    const auto begin = std::sregex_iterator(outcome.err.begin(), outcome.err.end(), line);
    // The other one may not have come so far before all are ended.
    for (auto each = begin; each != std::sregex_iterator(); ++each)
      CHECK_THAT(each->str(1), ContainsSubstring(told));
    CHECK(std::distance(begin, std::sregex_iterator()) <= 1);
  }
}

TEST_CASE("A login shell that prints is told apart from the agent, and said", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  print_at_logins(hosts, hosts.at(1));
  const auto file = write_config(hosts / "run.toml", ssh_cluster(hosts) + node_tables(hosts) +
                                                         small_run(hosts / "weights.safetensors"));
  const auto outcome = hosts.home().run({TROUPE_COMMAND, "launch", file});
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("node beta (10.77.0.3): its login shell prints "
                                            "(\"Welcome to this host\")"));
}

TEST_CASE("A stage that never joins is named, with a countdown", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha"});
  const auto secret = write_secret(hosts / "secret");
  const auto other = write_secret(hosts / "other_secret", "known-to-nobody-else");
  const auto file = write_config(hosts / "run.toml",
                                 awaited_cluster("10.77.0.1:4711", secret, "join_timeout = 10\n") +
                                     endless_run(hosts / "steps"));
  std::optional<running_program> stranger;
  const auto outcome =
      hosts.home().run({TROUPE_PROGRAM, "--config", file}, [&](pid_t, std::string_view line) {
        if (stranger || line.find("stage-1 may join now") == std::string_view::npos) return;
        const std::vector<std::string> words{TROUPE_COMMAND, "join",      "10.77.0.1:4711",
                                             "--name",       "stage-0",   "--secret-file",
                                             other.string(), "--program", TROUPE_PROGRAM};
        stranger.emplace(hosts.at(0), words);
      });
  REQUIRE(stranger);
  const auto refused = stranger->end();
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err, !ContainsSubstring("only processes of this machine"));
  CHECK_THAT(outcome.err, ContainsSubstring("waiting for stage-0, stage-1: "));
  CHECK_THAT(outcome.err, ContainsSubstring(" s left; a connection was refused: ") &&
                              ContainsSubstring("10.77.0.2"));
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring("stage-0, stage-1 have not joined the run within 10 s; a connection "
                               "was refused: ") &&
                 ContainsSubstring("does not prove that it has the cluster's secret") &&
                 ContainsSubstring("--join-timeout ([cluster] join_timeout)"));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.last_line(),
             ContainsSubstring("does not prove that it has the cluster's secret; "
                               "the address, the secret (--secret-file)"));
}

TEST_CASE("A stage that has joined and ends ends the run, and whoever else has joined says why",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto secret = write_secret(hosts / "secret");
  const auto file = write_config(hosts / "run.toml",
                                 awaited_cluster("10.77.0.1:4711", secret, "join_timeout = 60\n") +
                                     endless_run(hosts / "steps"));
  std::vector<std::unique_ptr<running_program>> stages;
  const auto on_line = [&](pid_t, std::string_view line) {
    for (std::size_t i = 0; i < 2; ++i) {
      const auto name = "stage-" + std::to_string(i);
      if (line.find(name + " may join now") == std::string_view::npos) continue;
      const std::vector<std::string> words{TROUPE_COMMAND, "join",      "10.77.0.1:4711",
                                           "--name",       name,        "--secret-file",
                                           secret,         "--program", TROUPE_PROGRAM};
      stages.push_back(std::make_unique<running_program>(hosts.at(i), words));
    }
    if (line.find("waiting for stage-2: ") != std::string_view::npos)
      for (const auto& each : hosts.at(0).processes_with(TROUPE_PROGRAM)) ::kill(each.pid, SIGKILL);
  };
  const auto outcome =
      hosts.home().run({TROUPE_PROGRAM, "--config", file, "--stages", "3"}, on_line);
  CHECK(outcome.code == 1);
  CHECK(outcome.seconds < 20s);  // by itself it would wait for a minute
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring("stage-0 (10.77.0.2) is gone: it has ended the connection"));
  REQUIRE(stages.size() == 2);
  const auto other = stages[1]->end();
  CHECK(other.code == 1);
  CHECK_THAT(other.last_line(),
             ContainsSubstring("stage-1: the run has failed: stage-0 (10.77.0.2) is gone"));
}

TEST_CASE("A run is stopped while it waits for stages that others start") {
  const scratch_folder folder;
  const auto file = write_config(folder / "run.toml",
                                 awaited_cluster("127.0.0.1:0", write_secret(folder / "secret")) +
                                     endless_run(folder / "steps"));
  for (const int signal : {SIGINT, SIGTERM}) {
    bool sent = false;
    const auto outcome = run_program({"--config", file}, [&](pid_t program, std::string_view line) {
      if (sent || line.find("stage-1 may join now") == std::string_view::npos) return;
      sent = true;
      ::kill(program, signal);
    });
    CHECK(sent);
    CHECK_THAT(outcome.err,
               ContainsSubstring("only processes of this machine can join at 127.0.0.1:"));
    CHECK_THAT(outcome.err, ContainsSubstring("with --listen ([link] listen)"));
    CHECK_THAT(outcome.err, ContainsSubstring("stopping before the first step; interrupt again"));
    CHECK(outcome.code == 128 + signal);
    CHECK(outcome.seconds < 10s);  // by itself it would wait for half a minute
  }
}

TEST_CASE("A trainer that listens at all addresses is joined by its host's name", "[untimed]") {
  const scratch_folder folder;
  const auto file = write_config(folder / "run.toml",
                                 awaited_cluster("0.0.0.0:0", write_secret(folder / "secret")) +
                                     endless_run(folder / "steps"));
  const auto outcome = run_program({"--config", file}, [&](pid_t program, std::string_view line) {
    if (line.find("stage-1 may join now") != std::string_view::npos) ::kill(program, SIGINT);
  });
  CHECK(outcome.code == 128 + SIGINT);
  CHECK_THAT(outcome.err, ContainsSubstring("troupe join " + host_name() + ":"));
}

TEST_CASE("A stage joins with the files and settings that its run is launched with", "[untimed]") {
  const scratch_folder folder;
  const auto secret = write_secret(folder / "secret");
  const auto model = write_config(folder / "model.toml", "[cluster]\nprogram = \"nowhere\"\n");
  const auto cluster =
      write_config(folder / "cluster.toml", "[cluster]\nprogram = \"" TROUPE_PROGRAM "\"\n");
  const auto joins = [&](std::vector<std::string> more) {
    std::vector<std::string> words{"join", "--secret-file", secret, "--name", "stage-0"};
    words.insert(words.end(), more.begin(), more.end());
    words.emplace_back("unix:/nowhere/door");  // behind the files, and none of them
    return run_other(TROUPE_COMMAND, words);
  };
  for (const auto& more : std::vector<std::vector<std::string>>{
           {"--config", model, "--config", cluster},
           {"--config", model, "--set", "cluster.program=" TROUPE_PROGRAM}}) {
    const auto joined = joins(more);
    CHECK_THAT(joined.last_line(),
               ContainsSubstring("resnet_pipeline: ") && ContainsSubstring("/nowhere/door"));
  }
  const auto last_wins = joins({"--config", cluster, "--config", model});
  CHECK(last_wins.code == 2);
  CHECK_THAT(
      last_wins.last_line(),
      ContainsSubstring("model.toml:2:11: cluster.program: there is no program \"nowhere\""));
  const auto unfinished = joins({"--config", cluster, "--set", "train.steps"});
  CHECK(unfinished.code == 2);
  CHECK_THAT(unfinished.last_line(),
             ContainsSubstring("troupe join: --set train.steps: is not TABLE.KEY=VALUE"));
}

namespace {

/// The command that joins a run, at an address of its trainer.
std::vector<std::string> joining(const std::string& secret, const std::string& name,
                                 const std::string& at = "10.77.0.1:4711",
                                 const std::string& program = TROUPE_PROGRAM) {
  return {TROUPE_COMMAND,  "join", at,          "--name", name,
          "--secret-file", secret, "--program", program};
}

/// A process that a run does not admit, or that cannot start.
struct attempt {
  const char* what;
  const test_host& where;
  std::vector<std::string> command;
  std::string reason;
};

/// All attempts on a run of `file` that stage-0 has joined. `hosts` has to outlive them.
std::vector<attempt> attempts_on(const test_hosts& hosts, const std::string& secret,
                                 const std::string& file) {
  return {
      {"a name that is taken", hosts.at(0), joining(secret, "stage-0"),
       "the name 'stage-0' is taken"},
      {"the same from another host", hosts.home(), joining(secret, "stage-0"),
       "the name 'stage-0' is taken"},
      {"a name that is not in the config", hosts.at(0), joining(secret, "stage-7"),
       "this run has no node 'stage-7'; it has stage-0, stage-1"},
      {"the trainer's name", hosts.at(0), joining(secret, "trainer"),
       "two nodes are named 'trainer'"},
      {"another build of the program", hosts.at(0),
       joining(secret, "stage-1", "10.77.0.1:4711", TROUPE_OTHER),
       "stage-1: the trainer at 10.77.0.1:4711 refuses this process: stage-1 on 10.77.0.2 is "
       "another build of the program, "},
      {"an address where nobody listens", hosts.at(0), joining(secret, "stage-1", "10.77.0.1:4712"),
       "stage-1: cannot connect to 10.77.0.1:4712: Connection refused; see whether the run's "
       "trainer has started, and join at the address that it prints"},
      {"another build on the trainer's host", hosts.home(),
       joining(secret, "stage-1", "10.77.0.1:4711", TROUPE_OTHER),
       "as the trainer's; install the trainer's program there, and join with it (--program of "
       "troupe join): " TROUPE_PROGRAM " on home"},
      {"an address where an ssh server listens", hosts.home(),
       joining(secret, "stage-1", "10.77.0.2:22"),
       "stage-1: 10.77.0.2:22 does not speak Troupe's protocol; the address, the secret"},
      {"a port that is none", hosts.home(), joining(secret, "stage-1", "10.77.0.1:99999"),
       "--join (ADDRESS of troupe join): \"10.77.0.1:99999\" is not an address"},
      {"a link-local address", hosts.home(), joining(secret, "stage-1", "[fe80::1]:4711"),
       "\"[fe80::1]:4711\" is a link-local address"},
      {"a port in use",
       hosts.home(),
       {TROUPE_PROGRAM, "--config", file},
       "--listen ([link] listen) 10.77.0.1:4711: the trainer cannot listen at 10.77.0.1:4711: "
       "Address already in use on home; end the process that listens there"}};
}

}  // namespace

TEST_CASE("A name that is taken or not the run's, another build and a port in use are refused") {
  skip_without_hosts();
  const test_hosts hosts({"alpha"});
  const auto secret = write_secret(hosts / "secret");
  const auto file = write_config(hosts / "run.toml",
                                 awaited_cluster("10.77.0.1:4711", secret, "join_timeout = 60\n") +
                                     small_run(hosts / "weights.safetensors"));
  running_program trainer(hosts.home(), {TROUPE_PROGRAM, "--config", file});
  REQUIRE(trainer.says("stage-0 may join now"));
  running_program first(hosts.at(0), joining(secret, "stage-0"));
  REQUIRE(trainer.says("waiting for stage-1: "));  // it has joined
  const auto all = attempts_on(hosts, secret, file);
  const hold_up held;
  std::deque<running_program> going;  // two at a time, but for the first, which is told of alone
  for (std::size_t begun = 0, ended = 0; ended < all.size(); ++ended) {
    for (; begun < std::min(ended == 0 ? 1 : ended + 2, all.size()); ++begun)
      going.emplace_back(all[begun].where, all[begun].command);
    INFO(all[ended].what);
    const auto outcome = going.front().end();
    going.pop_front();
    CHECK(outcome.code == 2);
    CHECK(outcome.seconds < 5s + held.over(threads_of_an_end));
    CHECK_THAT(outcome.last_line(), ContainsSubstring(all[ended].reason));
  }
  running_program second(hosts.at(0), joining(secret, "stage-1"));
  const auto trained = trainer.end();  // none of them has disturbed the run
  CHECK(trained.code == 0);
  CHECK_THAT(trained.err,
             ContainsSubstring("left; a connection was refused: the name 'stage-0' is taken"));
  std::smatch builds;
  const std::regex told(
      "stage-1 on 10\\.77\\.0\\.2 is another build of the program, ([0-9a-f]{32}) "
      "and not ([0-9a-f]{32}) as the trainer's");
  REQUIRE(std::regex_search(trained.err, builds, told));
  CHECK(builds[1] != builds[2]);
  CHECK(first.end().code == 0);
  CHECK(second.end().code == 0);
}
