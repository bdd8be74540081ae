// `troupe doctor`: what it finds on this machine and on hosts of which one thing each is wrong.

#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "tests/multiprocess/hosts/launch_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

/// Of stage 0, which is alone on alpha: doctor names the peak that `troupe check` predicts.
void expect_peak_of_check(const program_outcome& doctor, const program_outcome& check) {
  std::smatch named, shown;
  const auto line = line_with(doctor, {" alpha ", " memory "});
  REQUIRE(std::regex_search(line, named, std::regex("and ([0-9.]+) MiB at the predicted peak")));
  REQUIRE(
      std::regex_search(check.out, shown, std::regex("\n0 +[^\n]* alpha [^\n]* ([0-9]+) MiB\n")));
  CHECK(std::abs(std::stod(named[1].str()) - std::stod(shown[1].str())) <= 1);
}

program_outcome doctor(const test_host& on, const std::string& file) {
  return on.run({TROUPE_COMMAND, "doctor", file});
}

/// Of a cluster of alpha and beta: both, and each way between them and the trainer, with what
/// carries it and what is below.
void expect_both_examined(const program_outcome& outcome,
                          const std::string& carrier = "sealed tcp, ",
                          const std::string& below = "(a plain socket: ") {
  expect_no_error(outcome);
  expect_line(outcome, {"ok", "beta", "node", "beta, "});
  for (const auto* edge : {"alpha -> trainer", "beta -> trainer", "alpha -> beta", "beta -> alpha"})
    expect_line(outcome, {"ok", edge, carrier, below, " MB/s)"});
}

void expect_nothing_left(const test_hosts& hosts) {
  CHECK(hosts.home().left_after(2s).empty());
  CHECK(hosts.at(0).left_after(2s).empty());
  CHECK(hosts.at(1).left_after(2s).empty());
}

}  // namespace

TEST_CASE("troupe doctor examines two local nodes and every edge between them", "[untimed]") {
  const scratch_folder folder;
  const auto file = write_config(folder / "run.toml",
                                 local_cluster + node_table("alpha", "") + node_table("beta", "") +
                                     small_run(folder / "weights.safetensors", "resnet18"));
  const auto outcome = run_other(TROUPE_COMMAND, {"doctor", file});
  expect_no_error(outcome);
  for (const auto* edge : {"alpha -> trainer", "beta -> trainer", "alpha -> beta", "beta -> alpha"})
    expect_line(outcome, {"ok", edge, "edge", "shm, ", " (UCX over posix", " MB/s)"});
  expect_line(outcome, {"trainer", "versions", "build ", "CAF ", "Cap'n Proto ", "LibTorch 2",
                        "OpenSSL ", "UCX 1.", "agent protocol ", "frame protocol ", "libsodium "});
  expect_line(outcome, {"beta", "versions", "as on trainer"});
  expect_line(outcome, {"alpha", "memory", "weights, gradients and the optimizer's state, and "});
  expect_peak_of_check(outcome, run_other(TROUPE_COMMAND, {"check", file}));
  expect_line(outcome, {"alpha", "cores", "1 thread on "});
  expect_line(outcome, {"trainer", "disk", folder.path().string(), "written at ", "needs 4"});
  expect_line(outcome, {"trainer", "data", "synthetic:3x32x32:10:24 can be read"});
  expect_line(outcome, {"beta", "clock", " the trainer's (within "});
  CHECK_FALSE(std::filesystem::exists(folder / "weights.safetensors"));
  CHECK(children_of(getpid()).empty());

  const auto as_json = run_other(TROUPE_COMMAND, {"doctor", "--json", file, "--", "--seed", "4"});
  CHECK(as_json.code == outcome.code);
  for (const auto* member : {"\"severity\": \"", "\"findings\": [", "\"nodes\": {", "\"edges\": [",
                             "\"round_trip_us\": ", "\"libraries\": {"})
    CHECK_THAT(as_json.out, ContainsSubstring(member));
}

TEST_CASE("troupe doctor looks at the disks on which nodes keep slices of checkpoints",
          "[untimed]") {
  const scratch_folder folder;
  const auto in = [&folder](const char* name) {
    return "checkpoint_dir = \"" + (folder / name).string() + "\"\n";
  };
  const auto kept =
      "[checkpoint]\nstorage = \"local\"\ndir = \"" + (folder / "kept").string() + "\"\n";
  const auto outcome = run_other(
      TROUPE_COMMAND,
      {"doctor", write_config(folder / "run.toml",
                              local_cluster + node_table("alpha", "", in("one")) +
                                  node_table("beta", "", in("other")) + kept +
                                  small_run(folder / "weights.safetensors", "resnet18"))});
  CHECK(outcome.code == 1);
  expect_line(outcome, {"alpha", "disk", (folder / "one/slices").string(), "written at ",
                        "; needs 85 MiB for each of 4 checkpoints at once"});
  expect_line(outcome, {"trainer", "disk", (folder / "kept").string(), "manifests of checkpoints"});
  expect_line(outcome,
              {"warning", "beta", "disk", "is on the same disk as", "one/slices of alpha"});
  for (const auto* name : {"one", "other", "kept"})
    CHECK_FALSE(std::filesystem::exists(folder / name));
  write_config(folder / "file", "no folder");
  const auto wrong = run_other(
      TROUPE_COMMAND,
      {"doctor", write_config(folder / "run.toml",
                              local_cluster + node_table("alpha", "", in("one")) +
                                  node_table("beta", "", in("file")) + kept +
                                  small_run(folder / "weights.safetensors", "resnet18"))});
  CHECK(wrong.code == 2);
  expect_line(wrong, {"error", "beta", "disk", "nothing can be written in", "file is no folder"});
}

TEST_CASE("troupe doctor examines a run of one machine, and says what is wrong with settings",
          "[untimed]") {
  const scratch_folder folder;
  const auto program = "[cluster]\nprogram = \"" TROUPE_PROGRAM "\"\n";
  const auto file =
      write_config(folder / "run.toml", program + small_run(folder / "weights", "resnet18"));
  const auto alone = run_other(TROUPE_COMMAND, {"doctor", file});
  expect_no_error(alone);
  expect_line(alone, {"trainer -> trainer", "edge", "shm, "});

  const auto wrong = run_other(TROUPE_COMMAND, {"doctor", file, "--", "--batch-size", "none"});
  CHECK(wrong.code == 2);
  expect_line(wrong, {"error", "settings", "--batch-size"});

  const auto without = run_other(
      TROUPE_COMMAND, {"doctor", file, "--", "--data", "folder:" + (folder / "none").string()});
  CHECK(without.code == 2);
  expect_line(without, {"error", "trainer", "data", (folder / "none").string()});
  CHECK_THAT(without.out, ContainsSubstring("-> put the data there on this machine"));
  expect_line(without, {"ok", "trainer -> trainer", "edge"});  // all else is examined anyway
}

TEST_CASE("Data that a node is to read are opened there, whatever the trainer's machine has",
          "[untimed]") {
  const scratch_folder folder;
  for (const auto* each : {"here", "there"}) std::filesystem::create_directory(folder / each);
  const auto here = folder / "here/corpus.txt", there = folder / "there/corpus.txt";
  const auto file = write_config(
      folder / "run.toml",
      "[cluster]\nlaunch = \"local\"\nprogram = \"" TROUPE_TRANSFORMER "\"\n" +
          node_table("alpha", "", "working_folder = \"" + (folder / "there").string() + "\"\n") +
          node_table("beta", "") +
          "[pipeline]\nstages = 2\nmicro_batches = 2\n"
          "[transformer]\nlayers = 2\nwidth = 8\nheads = 1\ncontext = 16\n"
          "[data]\nsource = \"text:corpus.txt\"\nnode = \"alpha\"\n"
          "[train]\nbatch_size = 2\nsteps = 1\neval = false\n");
  const auto examined = [&] {
    return run_other("/bin/sh", {"-c", "cd " + (folder / "here").string() +
                                           " && exec " TROUPE_COMMAND " doctor " + file});
  };
  write_config(there, std::string(4000, 'a'));
  const auto distant = examined();
  CHECK(distant.code == 1);
  expect_line(distant, {"ok", " alpha ", " data ", "text:corpus.txt can be read"});
  expect_line(distant, {"warning", " trainer ", " memory ", "cannot be predicted on this machine",
                        "corpus.txt: there is no such text file"});

  write_config(here, std::string(4000, 'a'));
  const auto both = examined();
  expect_no_error(both);
  expect_line(both, {"ok", " alpha ", " data ", "text:corpus.txt can be read"});
  CHECK(line_with(both, {" trainer ", " data "}).empty());

  std::filesystem::remove(there);
  const auto lacking = examined();
  CHECK(lacking.code == 2);
  expect_line(lacking, {"error", " alpha ", " data ", "corpus.txt: there is no such text file",
                        (folder / "there").string()});
  expect_line(lacking, {"-> put the data there on this node"});
  CHECK(line_with(lacking, {" trainer ", " data "}).empty());
}

TEST_CASE("troupe doctor --json answers with an object where the file itself is wrong",
          "[untimed]") {
  const scratch_folder folder;
  const std::string program = "[cluster]\nprogram = \"" TROUPE_PROGRAM "\"\n";
  const auto file = write_config(folder / "run.toml", program + "[train\n");
  const auto check = [](const program_outcome& outcome, const std::string& text) {
    CHECK(outcome.code == 2);
    const auto found = nlohmann::json::parse(outcome.out, nullptr, false);
    REQUIRE(found.is_object());
    CHECK(found.at("severity") == "error");
    REQUIRE(found.at("findings").size() == 1);
    const auto& wrong = found.at("findings").front();
    CHECK(wrong.at("severity") == "error");
    CHECK(wrong.at("topic") == "settings");
    CHECK_THAT(wrong.at("text").get<std::string>(), ContainsSubstring(text));
    CHECK_FALSE(wrong.at("remedy").get<std::string>().empty());
  };
  check(run_other(TROUPE_COMMAND, {"doctor", "--json", file}), file + ":3:7: not valid TOML: ");
  check(run_other(TROUPE_COMMAND, {"doctor", "--json", folder / "none.toml"}),
        "none.toml cannot be read: No such file or directory");
  write_config(file, program + "[train]\nbatch_size = \"many\"\n");
  check(run_other(TROUPE_COMMAND, {"doctor", "--json", file}), file + ":4:14: train.batch_size: ");
  write_config(file, "[cluster]\nprogram = \"nothing/there\"\n");
  check(run_other(TROUPE_COMMAND, {"doctor", "--json", file}),
        file + ":2:11: cluster.program: there is no program \"nothing/there\"");
}

TEST_CASE("Too few open files for doctor are the trainer's, and no node is blamed for them",
          "[untimed]") {
  const scratch_folder folder;
  const auto file = write_config(folder / "run.toml",
                                 local_cluster + node_table("alpha", "") + node_table("beta", "") +
                                     small_run(folder / "weights.safetensors", "resnet18"));
  const auto outcome =
      run_other("/bin/sh", {"-c", "ulimit -n 24; exec " TROUPE_COMMAND " doctor " + file});
  CHECK(outcome.code == 2);
  expect_line(outcome, {"error", "trainer", "open files",
                        "this run needs about 96 open files, but a "
                        "process may have 24"});
  expect_line(outcome, {"-> raise the limit on open files (ulimit -n 96; LimitNOFILE=96"});
  CHECK_THAT(outcome.out, ContainsSubstring("1 error, 0 warnings; not examined: trainer, alpha, "
                                            "beta\n"));
}

TEST_CASE("A secret that others may read, as Kubernetes mounts it, is said with what to do",
          "[untimed]") {
  const scratch_folder folder;
  const auto secret = folder / "secret";
  write_config(secret, "known-to-all-of-them");
  std::filesystem::permissions(secret, std::filesystem::perms(0644));
  const auto file = write_config(
      folder / "run.toml", awaited_cluster("127.0.0.1:0", secret,
                                           "program = \"" TROUPE_PROGRAM "\"\njoin_timeout = 1\n") +
                               small_run(folder / "weights", "resnet18"));
  const auto open = run_other(TROUPE_COMMAND, {"doctor", file});
  CHECK(open.code == 2);
  expect_line(open, {"error", "settings", "others may use it (mode 0644)", "chmod 600",
                     "defaultMode: 0400"});
  std::filesystem::permissions(secret, std::filesystem::perms(0400));
  const auto closed = run_other(TROUPE_COMMAND, {"doctor", file});
  CHECK(closed.code == 1);
  expect_line(closed, {"ok", "node", "others start the stages"});
  expect_line(closed, {"warning", "stage-1", "node", "it has not joined within 1 s"});
  expect_line(closed, {"ok", "node", "only processes of this machine can join at 127.0.0.1:0"});
}

TEST_CASE("troupe doctor examines two hosts over ssh", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto file =
      write_config(hosts / "run.toml", ssh_cluster(hosts) + node_tables(hosts) +
                                           small_run(hosts / "weights.safetensors", "resnet18"));
  const auto outcome = doctor(hosts.home(), file);
  expect_both_examined(outcome);
  expect_line(outcome, {"ok", "beta", "clock", " the trainer's (within "});
  const auto trusted =
      hosts.home().run({TROUPE_COMMAND, "doctor", file, "--set", "link.network=trusted"});
  expect_both_examined(trusted, "trusted, ", "(UCX over tcp/");
  expect_nothing_left(hosts);
}

TEST_CASE("A host that is long in coming is examined when it comes, like any other", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  begin_logins_with("sleep 4", hosts, hosts.at(1));  // alpha is examined meanwhile
  const auto file =
      write_config(hosts / "run.toml", ssh_cluster(hosts) + node_tables(hosts) +
                                           small_run(hosts / "weights.safetensors", "resnet18"));
  const auto outcome = doctor(hosts.home(), file);
  expect_both_examined(outcome);
  CHECK(outcome.seconds > 4s);
  CHECK_THAT(outcome.err, ContainsSubstring("node beta (10.77.0.3): no answer for 2 s"));
  expect_nothing_left(hosts);
}

TEST_CASE("Of two hosts between which one way is closed, doctor says which", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  // What alpha sends to the port at which beta listens is dropped on beta.
  const auto closed =
      hosts.at(1).run({"/bin/sh", "-c",
                       "ip rule add pref 10 lookup local && ip rule del pref 0 && ip rule add pref "
                       "5 iif eth0 from " +
                           hosts.at(0).address() + " ipproto tcp dport 45678 blackhole"});
  REQUIRE(closed.code == 0);
  const auto file = write_config(
      hosts / "run.toml", ssh_cluster(hosts) + node_table("alpha", hosts.at(0).address()) +
                              node_table("beta", hosts.at(1).address(),
                                         "address = \"" + hosts.at(1).address() + ":45678\"\n") +
                              small_run(hosts / "weights.safetensors", "resnet18"));
  const auto outcome = doctor(hosts.home(), file);
  CHECK(outcome.code == 2);
  expect_line(outcome, {"error", "alpha -> beta", "edge", "alpha cannot connect to beta at ",
                        ":45678", "the other way, beta to alpha, is open"});
  expect_line(outcome, {"-> let TCP from alpha in on beta", "firewall of beta for what comes in"});
  expect_line(outcome, {"ok", "beta -> alpha", "sealed tcp, "});
  expect_line(outcome, {"ok", "beta -> trainer", "sealed tcp, "});
  CHECK_THAT(outcome.out, ContainsSubstring("1 error, "));
  expect_nothing_left(hosts);
}

TEST_CASE("What is wrong with one host is found while all else is examined", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto saved = hosts / "saved";
  const auto worked = hosts / "worked";
  for (const auto& each : {saved, worked}) std::filesystem::create_directory(each);
  const auto mount = [](const test_host& on, const std::string& size, const std::string& where) {
    REQUIRE(on.run({"/bin/mount", "-t", "tmpfs", "-o", "size=" + size, "tmpfs", where}).code == 0);
  };
  mount(hosts.home(), "1m", saved);
  mount(hosts.at(1), "1m", worked);
  const auto logs = hosts / "logs", kept = hosts / "kept";
  for (const auto& each : {logs, kept}) std::filesystem::create_directory(each);
  mount(hosts.home(), "4k", logs);
  mount(hosts.at(0), "4k", kept);
  mount(hosts.at(1), "1m", "/sys/class");
  REQUIRE(hosts.at(1)
              .run({"/bin/sh", "-c",
                    "mkdir -p /sys/class/infiniband/mlx5_0/ports/1 && cd "
                    "/sys/class/infiniband/mlx5_0/ports/1 && echo '4: ACTIVE' > state && echo "
                    "InfiniBand > link_layer && echo '100 Gb/sec (4X EDR)' > rate"})
              .code == 0);
  const auto file = write_config(hosts / "run.toml",
                                 ssh_cluster(hosts, "logs = \"" + logs.string() + "\"\n") +
                                     node_table("alpha", hosts.at(0).address(), "threads = 30\n") +
                                     node_table("beta", hosts.at(1).address(),
                                                "environment = [\"LD_PRELOAD=" TROUPE_SHIFTED_CLOCK
                                                "\"]\nworking_folder = \"" +
                                                    worked.string() + "\"\n") +
                                     small_run(saved / "weights.safetensors", "resnet18") +
                                     "[checkpoint]\ndir = \"" + kept.string() + "\"\n");
  const auto outcome = doctor(hosts.home(), file);
  CHECK(outcome.code == 2);
  expect_line(outcome, {"error", "trainer", "disk", saved.string(), "1.0 MiB free", "needs 4"});
  expect_line(outcome,
              {"warning", "trainer", "disk", logs.string(), "(cluster.logs)", "it is full"});
  expect_line(outcome, {"error", "alpha", "disk", kept.string(), "(checkpoint.dir)", "; needs "});
  expect_line(outcome, {"warning", "beta", "disk", worked.string(), "it is full"});
  expect_line(outcome, {"warning", "beta", "fabric", "InfiniBand mlx5_0:1 (100 Gb/sec (4X EDR))",
                        "is left unused: the network is sealed"});
  expect_line(outcome, {"warning", "beta", "clock", "24.0 hours ahead of the trainer's (within "});
  expect_line(outcome, {"warning", "alpha", "cores", "30 threads together"});
  expect_line(outcome, {"ok", "alpha -> beta", "sealed tcp"});
  CHECK_THAT(outcome.out, ContainsSubstring("2 errors, "));
  expect_nothing_left(hosts);
}

TEST_CASE("A host that cannot be reached, and one that cannot listen, do not hide the others",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto file = write_config(
      hosts / "run.toml",
      ssh_cluster(hosts) +
          node_table("alpha", hosts.at(0).address(), "network = \"10.99.0.0/16\"\n") +
          node_table("beta", "10.77.0.99") + node_table("gamma", hosts.at(1).address()) +
          small_run(hosts / "weights.safetensors", "resnet18"));
  const auto outcome = hosts.home().run({TROUPE_COMMAND, "doctor", file, "--", "--stages", "3"});
  CHECK(outcome.code == 2);
  expect_line(outcome, {"error", "alpha", "port",
                        "no interface of alpha has an address in the network 10.99.0.0/16"});
  expect_line(outcome, {"error", "beta", "node", "(10.77.0.99)", "no route"});
  expect_line(outcome, {"ok", "gamma -> trainer", "sealed tcp"});
  expect_line(outcome, {"ok", "alpha -> trainer", "sealed tcp"});
  expect_nothing_left(hosts);
}

TEST_CASE("Each node that cannot be examined is said with its cause, and all others are examined",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto libraries = hosts / "libraries";
  std::filesystem::create_directory(libraries);
  write_config(libraries / "libc10.so", "no library");
  const auto beta = hosts.at(1).address();
  const auto file = write_config(
      hosts / "run.toml",
      ssh_cluster(hosts) + node_table("nameless", "nowhere.invalid") +
          node_table("alpha", hosts.at(0).address()) + node_table("routeless", "192.0.2.1") +
          node_table("bare", beta, "program = \"/nowhere/trainer\"\n") +
          node_table("other", beta, "program = \"" TROUPE_OTHER "\"\n") +
          node_table("homeless", beta, "working_folder = \"/nowhere\"\n") +
          node_table("broken", beta,
                     "environment = [\"LD_LIBRARY_PATH=" + libraries.string() + "\"]\n") +
          node_table("beta", beta) + small_run(hosts / "weights.safetensors", "resnet18"));
  const auto outcome = hosts.home().run({TROUPE_COMMAND, "doctor", file, "--", "--stages", "8"});
  CHECK(outcome.code == 2);
  const std::vector<std::vector<std::string>> said{
      {"nameless", "stands for no address here", "if only ssh knows the name, name our own"},
      {"routeless", "there is no way from here", "see the routes of this machine"},
      {"bare", "the program /nowhere/trainer cannot be started there", "copy it to that host"},
      {"other", "another build", "copy the one that runs here to that host"},
      {"homeless", "in its working folder /nowhere", "make that folder there, or name another one"},
      {"broken", "libc10.so", "see `environment` of its [[node]]"}};
  for (const auto& each : said) {
    expect_line(outcome, {"error", each[0], "node", each[1]});
    expect_line(outcome, {"-> ", each[2]});
  }
  for (const auto* edge : {"alpha -> trainer", "beta -> trainer"})
    expect_line(outcome, {"ok", edge, "sealed tcp, "});
  CHECK_THAT(outcome.out,
             ContainsSubstring("6 errors, ") &&
                 ContainsSubstring(
                     "; not examined: nameless, routeless, bare, other, homeless, broken\n"));
  expect_nothing_left(hosts);
}

namespace {

/// A doctor of two nodes in one container, which has so much shared memory; begun with this object.
class doctor_in_container {
 public:
  /// `before`: what starts it, with its words.
  explicit doctor_in_container(const std::string& shared, std::vector<std::string> before = {}) {
    on_host(hosts_.home(), "mount -t tmpfs -o size=" + shared + " tmpfs /dev/shm");
    const auto file = write_config(
        hosts_ / "run.toml", local_cluster + node_table("alpha", "") + node_table("beta", "") +
                                 small_run(hosts_ / "weights", "resnet18"));
    std::filesystem::permissions(hosts_ / ".", std::filesystem::perms(0777));
    std::filesystem::permissions(file, std::filesystem::perms(0644));
    before.insert(before.end(), {TROUPE_COMMAND, "doctor", file});
    doctor_.emplace(hosts_.home(), before);
  }

  /// Waits for its end, behind which nothing is left.
  program_outcome end() {
    auto outcome = doctor_->end();
    CHECK(hosts_.home().left_after(2s).empty());
    return outcome;
  }

 private:
  test_hosts hosts_{std::vector<std::string>()};
  std::optional<running_program> doctor_;
};

}  // namespace

// Most of the time they wait for edges that answer late, so two of them go on beside each other.
// More, beside other tests, may keep an edge from answering within the four seconds that it has.
TEST_CASE("What containers lack is found: shared memory, reading memory, a name of the user",
          "[untimed]") {
  skip_without_hosts();
  doctor_in_container first("64m"), second("8m");
  const auto usual = first.end();
  expect_no_error(usual);
  expect_line(usual, {"ok", "alpha", "shared memory", " free of 64 MiB in /dev/shm"});

  doctor_in_container third("1m");
  const auto small = second.end();  // for one, while the other nodes' own take some of it
  CHECK(small.code == 1);
  expect_line(small, {"warning", "alpha", "shared memory", " free of 8.0 MiB in /dev/shm"});
  expect_line(small, {"ok", "alpha -> beta", "shm, "});  // it works all the same
  CHECK_THAT(small.out, ContainsSubstring("--shm-size=1g"));

  doctor_in_container fourth("64m", {TROUPE_WITHOUT_READING});
  const auto tiny = third.end();
  CHECK(tiny.code == 2);
  expect_line(tiny, {"error", "alpha", "shared memory", " free of 1.0 MiB in /dev/shm"});

  doctor_in_container fifth(
      "64m", {"/usr/bin/setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"});
  const auto apart = fourth.end();
  CHECK(apart.code == 1);
  expect_line(apart,
              {"warning", "alpha", "shared memory", "process_vm_readv: Operation not permitted"});
  expect_line(apart, {"ok", "alpha -> beta", "shm, "});  // it works all the same
  CHECK_THAT(apart.out, ContainsSubstring("--cap-add SYS_PTRACE"));

  const auto nameless = fifth.end();
  CHECK(nameless.code == 1);
  expect_line(nameless, {"warning", "alpha", "user", "user 54321 has no name here"});
  expect_line(nameless, {"ok", "alpha -> beta", "shm, "});
}
