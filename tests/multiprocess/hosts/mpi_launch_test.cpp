// `troupe launch` by a real mpirun over two hosts, which it reaches by ssh.

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "tests/multiprocess/hosts/launch_fixture.hpp"
#include "tests/multiprocess/recovery/calm_small_run.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

/// mpirun's way to the hosts is ssh with the tests' own settings; it refuses root by default.
std::string mpi_table(const test_hosts& hosts, const std::string& more = "") {
  return "[cluster]\nlaunch = \"mpi\"\nprogram = \"" TROUPE_PROGRAM
         "\"\nmpi_options = [\"--allow-run-as-root\", \"--mca\", \"plm_rsh_agent\", \"ssh -F " +
         hosts.ssh_config().string() + "\"]\n" + more;
}

}  // namespace

TEST_CASE("A launch over two hosts by mpirun trains to the bits of a run on one machine",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto alone = weights_of_small_run();
  const auto host_file = write_config(
      hosts / "hostfile", "# two hosts\n10.77.0.2 slots=1\n\n10.77.0.3 slots=1 max_slots=2\n");
  const auto file =
      write_config(hosts / "run.toml", mpi_table(hosts, "host_file = \"" + host_file + "\"\n") +
                                           small_run(hosts / "launched.safetensors"));
  const auto outcome = hosts.home().run({TROUPE_COMMAND, "launch", file});
  REQUIRE(outcome.code == 0);
  CHECK_FALSE(alone.empty());
  CHECK(bytes_of(hosts / "launched.safetensors") == alone);
  CHECK_THAT(outcome.err, ContainsSubstring("a host that is lost ends the run"));
  CHECK_THAT(outcome.err, ContainsSubstring("nothing proves whose the stream to each agent is"));
  CHECK_THAT(outcome.err, ContainsSubstring("stage-0 (10.77.0.2, 10.77.0.2"));
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1 (10.77.0.3, 10.77.0.3"));
  CHECK(programs_left(hosts, 2s) == "");
}

TEST_CASE("Whatever is killed of a launch by mpirun, nothing is left on any host") {
  skip_without_hosts();
  const std::string victim =
      GENERATE(as<std::string>{}, "launcher", "mpirun", "orted", "agent", "stage-1");
  INFO(victim);
  const test_hosts hosts({"alpha", "beta"});
  const auto file =
      write_config(hosts / "run.toml", mpi_table(hosts, "silence = 2\n") + node_tables(hosts) +
                                           endless_run(hosts / "steps"));
  bool killed = false;
  const auto outcome = hosts.home().run(as_launched(file), at_line("-> stage-1", [&](pid_t) {
                                          killed = true;
                                          CHECK(wait_for_content(hosts / "steps"));
                                          if (victim == "launcher")
                                            kill_on(hosts.home(), "--config");
                                          if (victim == "mpirun")
                                            kill_on(hosts.home(), "mpirun --host 10.77.0.3");
                                          if (victim == "orted") kill_on(hosts.at(1), "orted");
                                          if (victim == "agent") kill_on(hosts.at(1), "--agent");
                                          if (victim == "stage-1") kill_on(hosts.at(1), "stage-1");
                                        }));
  CHECK(killed);
  CHECK(programs_left(hosts, 4s) == "");
  if (victim == "launcher") return;
  CHECK(outcome.code == 1);
  // mpirun ends late after its processes, so the loss of the stage may be seen first.
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring("node beta (10.77.0.3)") || ContainsSubstring("stage-1"));
}

TEST_CASE("What cannot be launched by mpirun is refused with a remedy", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto refused = [&](const std::string& cluster, const std::string& nodes,
                           const std::vector<std::string>& words) {
    const auto file = write_config(hosts / "run.toml",
                                   cluster + nodes + small_run(hosts / "launched.safetensors"));
    const auto outcome = hosts.home().run(as_launched(file));
    CHECK(outcome.code == 2);
    for (const auto& word : words) CHECK_THAT(outcome.last_line(), ContainsSubstring(word));
    CHECK(programs_left(hosts, 4s) == "");
  };
  const auto alpha = node_table("alpha", hosts.at(0).address());
  refused(mpi_table(hosts), "", {"mpi needs hosts", "[[node]] tables or in a host_file"});
  refused(mpi_table(hosts, "host_file = \"/nowhere/hosts\"\n"), "",
          {"/nowhere/hosts cannot be read: No such file"});
  refused(mpi_table(hosts), alpha + node_table("beta", "me@10.77.0.3"),
          {"names a user, which only ssh takes"});
  refused(mpi_table(hosts), alpha + node_table("beta", "10.77.0.3", "program = \"/nowhere/it\"\n"),
          {"node beta (10.77.0.3): the program /nowhere/it cannot be started there"});
  refused("[cluster]\nlaunch = \"mpi\"\nprogram = \"" TROUPE_PROGRAM "\"\n",
          alpha + node_table("beta", "10.77.0.3"),
          {"Open MPI refuses to run as root", "mpi_options"});
  // No munged runs at home, nor on the hosts.
  refused(mpi_table(hosts, "stream = \"munge\"\n"), alpha + node_table("beta", "10.77.0.3"),
          {"munge: ", "see that munged runs on this host"});
  hosts.write_ssh_config(true, false);
  refused(mpi_table(hosts), alpha + node_table("beta", "10.77.0.3"),
          {"mpirun cannot start its daemon there", "ssh"});
}
