// The tables [cluster] and [[node]]: what they reach, and every way in which they can be wrong.

#include <stdlib.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/cluster/config_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::cluster::testing;
using Catch::Matchers::ContainsSubstring;

const std::string two_nodes = R"([cluster]
launch = "ssh"
[[node]]
name = "alpha"
host = "10.0.0.1"
[[node]]
name = "beta"
host = "me@10.0.0.2"
)";

/// The error of a file whose name is taken off it.
std::string wrong(const std::string& text) {
  const folder here;
  const auto file = here.write("run.toml", text);
  const auto error = error_of({"--config", file});
  return error.starts_with(file) ? "run.toml" + error.substr(file.size()) : error;
}

const char* const every_key = R"(
[pipeline]
stages = 3
[cluster]
launch = "ssh"
program = "trainer"
network = "10.0.0.0/8"
ssh_options = ["-p", "2222"]
silence = 3
join_timeout = 90.5
understudies = 2
[train]
on_fault = "recover"
[[node]]
name = "alpha"
host = "me@10.0.0.1"
address = "10.0.0.1"
stages = [2, 0]
cores = 4
threads = 3
environment = ["A=b", "C="]
working_folder = "/var/tmp"
program = "/opt/trainer"
device = "auto"
checkpoint_dir = "/scratch"
replicas = [0]
[[node]]
name = "beta"
host = "beta"
network = "fd00::/64"
)";

}  // namespace

TEST_CASE("every key of [cluster] and [[node]] reaches its member") {
  const folder here;
  const auto c = config_of({"--config", here.write("run.toml", every_key)});
  CHECK(c.cluster.launch == launch_way::ssh);
  CHECK(c.cluster.program == "trainer");
  CHECK(c.cluster.network == "10.0.0.0/8");
  CHECK(c.cluster.ssh_options == std::vector<std::string>{"-p", "2222"});
  CHECK(c.cluster.silence == 3);
  CHECK(c.cluster.join_timeout == 90.5);
  CHECK(c.cluster.understudies == 2);
  REQUIRE(c.cluster.nodes.size() == 2);
  CHECK(c.cluster.nodes[0] == node_entry{.name = "alpha",
                                         .host = "me@10.0.0.1",
                                         .address = "10.0.0.1",
                                         .network = "",
                                         .stages = {"2", "0"},
                                         .replicas = {"0"},
                                         .cores = 4,
                                         .threads = 3,
                                         .environment = {"A=b", "C="},
                                         .working_folder = "/var/tmp",
                                         .program = "/opt/trainer",
                                         .device = "auto",
                                         .checkpoint_dir = "/scratch"});
  CHECK(c.cluster.nodes[1].name == "beta");
  CHECK(c.cluster.nodes[1].network == "fd00::/64");
  CHECK(c.link.transport == transport::mixed);
  CHECK(node_of_stages(c, 4).value() == std::vector<std::size_t>{0, 1, 0});
  CHECK(threads_of_stages(c, 6) == std::vector<int>{3, 6, 3});
  CHECK(seats_of_stages(c, 4) == std::vector<device_seat>{{"auto", 0, 2}, {"cpu"}, {"auto", 1, 2}});
}

TEST_CASE("stages whose device is automatic are counted by machine") {
  const folder here;
  const auto seats = [&](const std::string& launch, const std::string& other_host) {
    return seats_of_stages(
        config_of({"--stages", "3", "--config",
                   here.write("run.toml", "[cluster]\nlaunch = \"" + launch +
                                              "\"\n[pipeline]\ndevice = \"auto\"\n"
                                              "[[node]]\nname = \"alpha\"\nhost = \"alpha\"\n"
                                              "stages = [0, 2]\n"
                                              "[[node]]\nname = \"beta\"\nhost = \"" +
                                              other_host + "\"\nstages = [1]\n")}),
        4);
  };
  using list = std::vector<device_seat>;
  CHECK(seats("ssh", "beta") == list{{"auto", 0, 2}, {"auto", 0, 1}, {"auto", 1, 2}});
  CHECK(seats("ssh", "alpha") == list{{"auto", 0, 3}, {"auto", 1, 3}, {"auto", 2, 3}});
  CHECK(seats_of_stages(config_of({"--stages", "2", "--replicas", "2", "--device", "auto"}), 4) ==
        list{{"auto", 0, 4}, {"auto", 1, 4}, {"auto", 2, 4}, {"auto", 3, 4}});
  CHECK(seats_of_stages(config_of({"--stages", "2", "--replicas", "2", "--device", "cpu,auto"}),
                        4) == list{{"cpu"}, {"auto", 0, 2}, {"cpu"}, {"auto", 1, 2}});
  CHECK(seats_of_stages(
            config_of({"--stages", "2", "--replicas", "2", "--device", "auto,cpu,cpu,auto"}), 4) ==
        list{{"auto", 0, 2}, {"cpu"}, {"cpu"}, {"auto", 1, 2}});
}

TEST_CASE("the samples of one machine and of two hosts are accepted, and are the same run") {
  const std::string samples = TROUPE_SOURCE_DIR "/apps/resnet_pipeline/";
  const auto alone = config_of({"--config", samples + "one_machine.toml"});
  CHECK(alone.cluster.launch == launch_way::local);
  CHECK(alone.cluster.nodes.empty());
  const auto c = config_of({"--config", samples + "two_hosts.toml"});
  CHECK(c.cluster.launch == launch_way::ssh);
  CHECK(node_of_stages(c, 2).value() == std::vector<std::size_t>{0, 1});
  CHECK(alone.pipeline == c.pipeline);
  CHECK(alone.train == c.train);
}

TEST_CASE("the first files of docs/clusters.md are accepted, for one machine and for two hosts") {
  std::ifstream page(TROUPE_SOURCE_DIR "/docs/clusters.md");
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  std::vector<std::string> files;
  const std::string begin = "```toml\n";
  for (auto at = text.find(begin); at != std::string::npos && files.size() < 3;
       at = text.find(begin, at + 1))
    files.push_back(text.substr(at + begin.size(), text.find("```\n", at + 1) - at - begin.size()));
  REQUIRE(files.size() == 3);
  const folder here;
  const auto alone = config_of({"--config", here.write("run.toml", files[0])});
  CHECK(alone.cluster.launch == launch_way::local);
  CHECK(alone.pipeline.stages == 2);
  // "[cluster] becomes this, and all other tables stay"
  const auto others = files[0].substr(files[0].find("[pipeline]"));
  const auto hosts = config_of({"--config", here.write("run.toml", files[1] + others)});
  CHECK(hosts.cluster.launch == launch_way::ssh);
  CHECK(node_of_stages(hosts, 2).value() == std::vector<std::size_t>{0, 1});
  CHECK_THAT(wrong(files[2] + others),
             ContainsSubstring("cluster.launch: this process is in no allocation of Slurm's"));
}

TEST_CASE("the keys of schedulers reach their members, and a host file gives the nodes") {
  const folder here;
  const auto hosts = here.write("hosts", "alpha slots=4\nbeta slots=4\n");
  const auto c = config_of({"--stages", "2", "--config",
                            here.write("run.toml",
                                       "[cluster]\nlaunch = \"mpi\"\n"
                                       "host_file = \"" +
                                           hosts +
                                           "\"\nstream = \"munge\"\n"
                                           "mpi_options = [\"-v\"]\n"
                                           "slurm_options = [\"-Q\"]\n")});
  CHECK(c.cluster.launch == launch_way::mpi);
  CHECK(c.cluster.host_file == hosts);
  CHECK(c.cluster.stream == stream_proof::munge);
  CHECK(c.cluster.mpi_options == std::vector<std::string>{"-v"});
  CHECK(c.cluster.slurm_options == std::vector<std::string>{"-Q"});
  CHECK(c.link.transport == transport::mixed);
  REQUIRE(c.cluster.nodes.size() == 2);
  CHECK(c.cluster.nodes[0].name == "alpha");
  CHECK(threads_of_stages(c, 1) == std::vector<int>{4, 4});
}

TEST_CASE("the samples of schedulers are accepted, Slurm's within an allocation") {
  const std::string folder_of_samples = TROUPE_SOURCE_DIR "/docs/examples/";
  CHECK(config_of({"--config", folder_of_samples + "mpi.toml"}).cluster.nodes.size() == 2);
  const std::vector<std::pair<const char*, const char*>> allocation{
      {"SLURM_JOB_ID", "7"},
      {"SLURM_JOB_NODELIST", "n[1-2]"},
      {"SLURM_JOB_CPUS_PER_NODE", "8(x2)"}};
  for (const auto& [name, value] : allocation) ::setenv(name, value, 1);
  const auto c = config_of({"--config", folder_of_samples + "slurm.toml"});
  const folder here;
  const auto many = error_of(
      {"--config", here.write("run.toml", "[cluster]\nlaunch = \"slurm\"\n"), "--stages", "1"});
  for (const auto& each : allocation) ::unsetenv(each.first);
  REQUIRE(c.cluster.nodes.size() == 2);
  CHECK(c.cluster.nodes[1].host == "n2");
  CHECK(c.cluster.nodes[1].cores == 8);
  CHECK_THAT(many, ContainsSubstring("2 hosts are too many for 1 stage"));
  CHECK_THAT(error_of({"--config", folder_of_samples + "slurm.toml"}),
             ContainsSubstring("cluster.launch: this process is in no allocation of Slurm's"));
}

TEST_CASE("threads of stages without nodes are shares of this machine's cores") {
  CHECK(threads_of_stages(config_of({"--stages", "2"}), 8) == std::vector<int>{4, 4});
  CHECK(threads_of_stages(config_of({"--stages", "2", "--threads-per-stage", "3"}), 8) ==
        std::vector<int>{3, 3});
}

TEST_CASE("as many threads as take turns are accepted, and more where the cores are not known") {
  const folder here;
  const auto text = two_nodes + "cores = 2\nthreads = 64\n[pipeline]\nthreads_per_stage = 4000\n";
  const auto c =
      config_of({"--config", here.write("run.toml", text)});  // of alpha's nothing is said
  CHECK(thread_loads_of(c, 2) ==
        std::vector<thread_load>{
            {4000, 4000, "threads_per_stage in [pipeline] (--threads-per-stage)"},
            {64, 64, "threads in its [[node]]"}});
  CHECK(words_on_threads(thread_loads_of(c, 2)[1], 2) ==
        "its stages have 64 threads together, on 2 cores: threads that wait for a core slow all of "
        "them down; lower threads in its [[node]]");
  CHECK(words_on_threads({.all = 64, .most = 64, .setting = ""}, 64).empty());
  CHECK(
      words_on_threads({.all = 3, .most = 1, .setting = ""}, 1).empty());  // no fewer are possible
  if (std::thread::hardware_concurrency() >= 4096 / most_threads_a_core) return;
  for (const std::string flag : {"--threads-per-stage", "--data-threads"})
    CHECK(error_of({flag, "4096"})
              .starts_with(flag + ": 4096 threads of one process are too many for "));
}

namespace {

/// Checks what each text of a file is refused with.
void check_refused(const std::vector<std::pair<std::string, std::string>>& cases) {
  for (const auto& [text, expected] : cases) {
    INFO(text);
    CHECK_THAT(wrong(text), ContainsSubstring(expected));
  }
}

}  // namespace

TEST_CASE("a wrong key or value of [cluster], or a wrong table, is refused with line and remedy") {
  check_refused({
      {"[cluster]\nlaunch = \"rsh\"\n", "run.toml:2:10: cluster.launch: unknown value \"rsh\""},
      {"[cluster]\nlaunch = 3\n",
       "run.toml:2:10: cluster.launch: expected a text, got the integer 3"},
      {"[cluster]\nsilence = 0\n",
       "run.toml:2:11: cluster.silence: 0 is out of range; allowed: 1 to"},
      {"[cluster]\nprogramm = \"x\"\n",
       "run.toml:2:1: cluster.programm: unknown key; did you mean program?"},
      {"[cluster]\nnetwork = \"10.0.0.1/8\"\n",
       "run.toml:2:11: cluster.network: \"10.0.0.1/8\" is not a network"},
      {"[cluster]\nlaunch = \"ssh\"\n", "run.toml:2:10: cluster.launch: ssh needs hosts"},
      {"[cluster]\nlaunch = \"mpi\"\n", "run.toml:2:10: cluster.launch: mpi needs hosts"},
      {"[cluster]\nstream = \"open\"\n", "run.toml:2:10: cluster.stream: unknown value \"open\""},
      {"[cluster]\nhost_file = \"hosts\"\n", "run.toml:2:13: cluster.host_file: is mpirun's"},
      {"[cluster]\nlaunch = \"mpi\"\nhost_file = \"/nowhere/hosts\"\n",
       "run.toml:3:13: cluster.host_file: /nowhere/hosts cannot be read: No such file"},
      {"[cluster]\nlaunch = \"mpi\"\n[[node]]\nname = \"alpha\"\nhost = \"me@x\"\n",
       "run.toml:5:8: node.host: \"me@x\" names a user, which only ssh takes"},
      {"[cluster]\nlaunch = \"none\"\n", "run.toml:2:10: cluster.launch: where others start"},
      {"[node]\nname = \"alpha\"\n", "run.toml:1:2: [node]: write [[node]], once for each node"},
      {"node = 3\n", "run.toml:1:1: [node]: write [[node]]"},
      {"[[node]]\n", "run.toml:1:1: [[node]]: table 1 of them is empty"},
      {"[[nodes]]\nname = \"alpha\"\n",
       "run.toml:1:3: [nodes]: unknown table; did you mean [node]?"},
  });
}

TEST_CASE("a wrong key or value of [[node]] is refused with line, key and remedy") {
  check_refused({
      {two_nodes + "nam = \"x\"\n", "run.toml:9:1: node.nam: unknown key; did you mean name?"},
      {two_nodes + "cores = \"two\"\n", "run.toml:9:9: node.cores: expected an integer"},
      {two_nodes + "stages = [\"0\"]\n", "run.toml:9:11: node.stages: expected a list of integers"},
      {two_nodes + "stages = [-1]\n", "run.toml:9:11: node.stages: expected a list of integers"},
      {two_nodes + "stages = [1, 1]\n",
       "run.toml:9:10: node.stages: \"1\" stands in the list twice"},
      {two_nodes + "stages = [7]\n",
       "run.toml:9:10: node.stages: node \"beta\": stage 7 does not exist; the pipeline has 2"},
      {two_nodes + "stages = [0, 1]\n", "node \"alpha\" is left without a stage"},
      {two_nodes + "environment = [\"A\"]\n",
       "run.toml:9:15: node.environment: \"A\" is not NAME=VALUE"},
      {"[[node]]\nname = \"alpha\"\nworking_folder = \"/nowhere\"\n",
       "run.toml:3:18: node.working_folder: /nowhere is no folder of this machine"},
      {"[[node]]\nname = \"alpha\"\nprogram = \"/nowhere\"\n",
       "run.toml:3:11: node.program: /nowhere is no program that may be executed on this machine"},
      {two_nodes + "cores = 2\nthreads = 65\n",
       "run.toml:10:11: node.threads: 65 threads of one process are too many for 2 cores, where "
       "more than 32 for each only take turns; allowed there: up to 64"},
      {two_nodes + "cores = 2\n[pipeline]\nthreads_per_stage = 65\n",
       "run.toml:11:21: pipeline.threads_per_stage: 65 threads of one process are too many for 2"},
      {two_nodes + "stages = [1, 2]\naddress = \"10.0.0.2:4000\"\n[pipeline]\nstages = 3\n",
       "run.toml:10:11: node.address: \"10.0.0.2:4000\" has one port, but 2 stages are to listen "
       "there; leave the port out"},
      {two_nodes + "network = \"here\"\n",
       "run.toml:9:11: node.network: \"here\" is not a network"},
      {two_nodes + "address = \"10.0.0.2\"\nnetwork = \"10.0.0.0/8\"\n",
       "run.toml:10:11: node.network: says where its processes listen, and so does address"},
  });
}

TEST_CASE("a wrong name, address or folder of a node is refused with line, key and remedy") {
  check_refused({
      {two_nodes + "[[node]]\nname = \"alpha\"\nhost = \"x\"\n",
       "run.toml:10:8: node.name: two nodes are named \"alpha\""},
      {two_nodes + "[[node]]\nname = \"a b\"\nhost = \"x\"\n",
       "run.toml:10:8: node.name: \"a b\" is no name of a node"},
      {two_nodes + "[[node]]\nname = \"a\\nb\\u001B[1m\"\nhost = \"x\"\n",
       "run.toml:10:8: node.name: \"a\\nb\\x1b[1m\" is no name of a node; use letters, digits, "
       "'.', '_' and '-'"},
      {two_nodes + "[[node]]\nname = \"stage-0\"\nhost = \"x\"\n",
       "run.toml:10:8: node.name: \"stage-0\" is the name of a process of the run"},
      {two_nodes + "[[node]]\nname = \"stage-0.2\"\nhost = \"x\"\n",
       "run.toml:10:8: node.name: \"stage-0.2\" is the name of a process of the run"},
      {two_nodes + "[[node]]\nname = \"..\"\nhost = \"x\"\n",
       "run.toml:10:8: node.name: \"..\" is no name of a node"},
      {two_nodes + "[[node]]\nname = \"trainer\"\nhost = \"x\"\n",
       "run.toml:10:8: node.name: \"trainer\" is the name of a process of the run"},
      {two_nodes + "[[node]]\nname = \"" + std::string(65, 'n') + "\"\nhost = \"x\"\n",
       "run.toml:10:8: node.name: a name of 65 characters is too long; allowed: 64"},
      {two_nodes + "address = \"10.0.0.2\\u001B[2J\"\n",
       "run.toml:9:11: node.address: \"10.0.0.2\\x1b[2J\" is no address; write HOST or HOST:PORT"},
      {"[cluster]\nlogs = \"/dev/null/of/run\"\n[[node]]\nname = \"alpha\"\n",
       "run.toml:2:8: cluster.logs: /dev/null/of/run takes no files: /dev/null is not a "
       "directory"},
      {two_nodes + "[checkpoint]\ndir = \"/dev/null\"\n",
       "run.toml:10:7: checkpoint.dir: /dev/null takes no files: it is not a directory"},
      {two_nodes + "[[node]]\nname = \"gamma\"\nhost = \"x\\ty\"\n",
       "run.toml:11:8: node.host: \"x\\ty\" is no host"},
      {two_nodes + "[[node]]\nname = \"gamma\"\nhost = \"x\\n\"\n",
       "run.toml:11:8: node.host: \"x\\n\" is no host"},
      {two_nodes + "[[node]]\nhost = \"x\"\n", "[[node]] 3: node.name: \"\" is no name of a node"},
      {two_nodes + "[[node]]\nname = \"gamma\"\n", "run.toml:10:8: node.host: is left out"},
      {two_nodes + "[[node]]\nname = \"gamma\"\nhost = \"-oProxyCommand=x\"\n",
       "run.toml:11:8: node.host: \"-oProxyCommand=x\" is no host"},
      {two_nodes + "[link]\ntransport = \"shm\"\n",
       "run.toml:10:13: link.transport: shared memory does not reach other hosts"},
      {two_nodes + "[pipeline]\nstages_in = \"threads\"\n",
       "run.toml:10:13: pipeline.stages_in: stages in threads live in the trainer's process"},
  });
}

TEST_CASE("a launch of our own needs no secret file where others reach it, one of others does") {
  const folder here;
  const auto ours = here.write("ours.toml", two_nodes + "[link]\nlisten = \"10.0.0.9:0\"\n");
  CHECK(config_of({"--config", ours}).link.secret_file.empty());
  const auto theirs =
      here.write("theirs.toml", "[cluster]\nlaunch = \"none\"\n[link]\nlisten = \"10.0.0.9:0\"\n");
  CHECK_THAT(error_of({"--config", theirs}), ContainsSubstring("--secret-file"));
}

TEST_CASE("every error of a file is told, in the order of its lines") {
  const folder here;
  const auto file = here.write(
      "run.toml", "[train]\nsteps = \"x\"\n[cluster]\nlaunch = \"rsh\"\n[[node]]\ncores = -1\n");
  const std::vector<const char*> words{"--config", file.c_str()};
  const auto all = every_error(trainer, words);
  REQUIRE(all.size() == 3);
  CHECK(all[0].starts_with(file + ":2:9: train.steps: "));
  CHECK(all[1].starts_with(file + ":4:10: cluster.launch: "));
  CHECK(all[2].starts_with(file + ":6:9: node.cores: "));
  CHECK(error_of({"--config", file}) == all[0]);
}
