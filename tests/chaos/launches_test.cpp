// Launches over two hosts of which something ends at a random moment: a short campaign of one seed.
// TROUPE_LAUNCHES=n makes n of them, TROUPE_SEED=s others (./dev chaos launches).

#include <signal.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tests/chaos/random.hpp"
#include "tests/multiprocess/hosts/launch_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using namespace std::chrono_literals;
using steady = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoull(text);
}

/// Who is signalled with what.
struct fault {
  std::string who;  ///< "launcher", "ssh", "agent", "sshd", "stage"
  int signal = 0;
};

const std::vector<fault>& faults() {
  static const std::vector<fault> all{
      {"launcher", SIGKILL}, {"launcher", SIGINT}, {"launcher", SIGTERM},
      {"ssh", SIGKILL},      {"ssh", SIGTERM},     {"agent", SIGKILL},
      {"agent", SIGTERM},    {"sshd", SIGKILL},    {"stage", SIGKILL}};
  return all;
}

/// The processes that `who` may mean now; of sshd all those of one host, for a session has several.
std::vector<host_process> meant(const test_hosts& hosts, const std::string& who, std::size_t host) {
  if (who == "launcher") return hosts.home().processes_with("run.toml");
  if (who == "ssh") return hosts.home().processes_with("BatchMode");
  if (who == "agent") return hosts.at(host).processes_with("--agent");
  if (who == "sshd") return hosts.at(host).processes_with("sshd");
  return hosts.at(host).processes_with("--node-name");
}

/// How long a launch takes to its first step; it is ended then.
milliseconds time_to_first_step(const test_hosts& hosts, const std::vector<std::string>& command) {
  const auto begin = steady::now();
  running_program launch(hosts.home(), command);
  REQUIRE(wait_for_content(hosts / "steps"));
  const auto took = std::chrono::duration_cast<milliseconds>(steady::now() - begin);
  for (const auto& each : meant(hosts, "launcher", 0)) ::kill(each.pid, SIGKILL);
  static_cast<void>(launch.end());
  REQUIRE(anything_left(hosts, 2s) == "");
  return took;
}

/// One launch and its fault. Returns what was signalled: "agent".
std::string disturb(const test_hosts& hosts, const std::vector<std::string>& command,
                    std::uint64_t seed, milliseconds usual) {
  chaos::choices random(seed);
  auto what = random.one_of(faults());
  const auto host = random.below(2);
  const auto moment =
      milliseconds(static_cast<int>(1.3 * random.share() * static_cast<double>(usual.count())));
  running_program launch(hosts.home(), command);
  REQUIRE_FALSE(launch.ends_within(moment));
  auto victims = meant(hosts, what.who, host);
  // It may not be there yet: then it ends as soon as it is.
  for (const auto end = steady::now() + usual + 2s; victims.empty() && steady::now() < end;) {
    REQUIRE_FALSE(launch.ends_within(10ms));
    victims = meant(hosts, what.who, host);
  }
  if (victims.empty()) {
    what.who = "launcher";
    victims = meant(hosts, what.who, host);
  }
  if (what.who == "ssh") victims = {random.one_of(victims)};
  const std::string did = what.who + " with signal " + std::to_string(what.signal) + " after " +
                          std::to_string(moment.count()) + " ms";
  INFO("TROUPE_LAUNCHES=1 TROUPE_SEED=" << seed << ": " << did);
  REQUIRE_FALSE(victims.empty());
  for (const auto& each : victims) ::kill(each.pid, what.signal);
  if (what.who == "launcher" && what.signal == SIGKILL) {
    CHECK(anything_left(hosts, 2s) == "");
    return what.who;
  }
  // The launcher ends by itself, and all is gone two seconds later.
  const auto ended = launch.ends_within(20s);
  CHECK(ended);
  if (!ended)
    for (const auto& each : meant(hosts, "launcher", 0)) ::kill(each.pid, SIGKILL);
  const auto outcome = launch.end();
  if (what.who != "launcher") CHECK(outcome.code != 0);
  CHECK(anything_left(hosts, 2s) == "");
  return what.who;
}

}  // namespace

TEST_CASE("Whatever of a launch ends at whatever moment, nothing is left on any host") {
  skip_without_hosts();
  const auto count = number_of("TROUPE_LAUNCHES", 6);
  const auto seed = number_of("TROUPE_SEED", 1);
  const test_hosts hosts({"alpha", "beta"});
  const auto file = write_config(
      hosts / "run.toml", ssh_cluster(hosts) + node_tables(hosts) + endless_run(hosts / "steps"));
  const std::vector<std::string> command{TROUPE_COMMAND, "launch", file};
  const auto usual = time_to_first_step(hosts, command);
  std::map<std::string, int> done;
  for (std::uint64_t i = 0; i < count; ++i) ++done[disturb(hosts, command, seed + i, usual)];
  std::string told;
  for (const auto& [who, times] : done) told += " " + who + " " + std::to_string(times);
  WARN("seed " << seed << ", " << count << " launches of " << usual.count()
               << " ms to their first step; ended:" << told);
  CHECK(done.size() >= std::min<std::size_t>(count, 3));
}
