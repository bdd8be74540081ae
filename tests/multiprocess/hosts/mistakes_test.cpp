// Mistakes that people make with several machines: each is said with its cause and what to do, by
// the launch or by the doctor, which measures all the rest too, within five seconds.

#include <signal.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/multiprocess/hosts/launch_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

std::string ssh_run(const test_hosts& hosts, const std::string& of_alpha,
                    const std::string& of_beta, const std::string& of_cluster = "") {
  return ssh_cluster(hosts, of_cluster) + node_table("alpha", hosts.at(0).address(), of_alpha) +
         node_table("beta", hosts.at(1).address(), of_beta) + endless_run(hosts / "steps");
}

/// `program` of a node where a line of shell comes before the program.
std::string limited_program(const test_hosts& hosts, const std::string& line) {
  const auto script =
      write_config(hosts / "limited", "#!/bin/sh\n" + line + "\nexec " TROUPE_PROGRAM " \"$@\"\n");
  std::filesystem::permissions(script, std::filesystem::perms(0755));
  return "program = \"" + script + "\"\n";
}

struct mistake {
  std::string name;
  std::string command;  ///< "launch" or "doctor"
  int code;
  /// Makes it, and returns the run's file.
  std::function<std::string(const test_hosts&)> make;
  std::vector<std::string> words;  ///< In one line: the last one, or one of the doctor's.
  std::string remedy;
  std::string before = {};  ///< Of a line that comes earlier.
  /// In place of the command, with the run's file.
  std::function<program_outcome(const test_hosts&, const std::string& file)> run = {};
  bool doctor_too = false;  ///< Of a launch: doctor says it as well, before the run.
};

const std::string fixed_port = "address = \"10.77.0.3:45678\"\n";

/// What comes to beta's port of the stages is dropped.
std::string dropped(const std::string& from) {
  return turned_away(from, "ipproto tcp dport 45678 blackhole");
}

/// Both hosts have a bridge with the same address, and the stages listen in its network.
std::string two_bridges(const test_hosts& hosts) {
  for (const auto* host : {&hosts.at(0), &hosts.at(1)})
    on_host(*host,
            "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && ip "
            "link set docker0 up");
  const std::string bridge = "network = \"172.17.0.0/16\"\n";
  return ssh_run(hosts, bridge, bridge);
}

/// The hosts' interfaces have a larger MTU than the bridge's ports, which carry 1500; segments that
/// the device is to cut would pass whole.
std::string large_mtu(const test_hosts& hosts) {
  for (const auto* host : {&hosts.at(0), &hosts.at(1)})
    on_host(*host, "ip link set eth0 mtu 9000 gso_max_segs 1");
  return ssh_run(hosts, "", "");
}

/// A trainer waits for stages that others start, of which one comes with another secret: how that
/// one ends, behind what the trainer has said.
program_outcome join_with_other_secret(const test_hosts& hosts, const std::string& file) {
  const auto other = write_secret(hosts / "other_secret", "known-to-nobody-else");
  std::optional<program_outcome> joined;
  const auto on_line = [&](pid_t, std::string_view line) {
    if (!joined && line.find("stage-1 may join now") != std::string_view::npos)
      joined = hosts.at(0).run({TROUPE_COMMAND, "join", "10.77.0.1:4711", "--name", "stage-0",
                                "--secret-file", other, "--program", TROUPE_PROGRAM});
    if (line.find("a connection was refused: ") == std::string_view::npos) return;
    for (const auto& each : hosts.home().processes_with(TROUPE_PROGRAM)) ::kill(each.pid, SIGKILL);
  };
  const auto trainer = hosts.home().run({TROUPE_PROGRAM, "--config", file}, on_line);
  REQUIRE(joined);
  joined->err = trainer.err + joined->err;
  return *joined;
}

/// Mistakes that a launch finds in what a host has and how it is called.
std::vector<mistake> mistakes_of_hosts() {
  return {
      {"127.0.1.1 in /etc/hosts",
       "launch",
       2,
       [](const test_hosts& hosts) {
         hosts.write_names("beta", "127.0.0.1 localhost\n127.0.1.1 beta\n");
         return ssh_run(hosts, "", "address = \"beta\"\n");
       },
       {"\"beta\" stands for 127.0.1.1 here"},
       "(see /etc/hosts)"},
      {"two bridges with one address",
       "launch",
       2,
       two_bridges,
       {"stage-0 on node alpha and stage-1 on node beta both listen at 172.17.0.1"},
       "name an address or network that differs"},
      {"environment lost over ssh",
       "launch",
       2,
       [](const test_hosts& hosts) {
         on_host(hosts.at(1), "mount -t tmpfs tmpfs " + libtorch_folder().string());
         return ssh_run(hosts, "", "");
       },
       {"node beta (10.77.0.3): a library that the program", "ssh passes no LD_LIBRARY_PATH"},
       "install its package on that host"},
      {"another build",
       "launch",
       2,
       [](const test_hosts& hosts) {
         return ssh_run(hosts, "", "program = \"" TROUPE_OTHER "\"\n");
       },
       {"node beta (10.77.0.3): the program there", "another build"},
       "copy the one that runs here to that host"},
      {"too few open files for an agent",
       "launch",
       2,
       [](const test_hosts& hosts) {
         return ssh_run(hosts, "", limited_program(hosts, "ulimit -n 24"));
       },
       {"node beta (10.77.0.3): ", "about 48 open files, but a process may have 24"},
       "ulimit -n 48; LimitNOFILE=48"},
  };
}

/// Mistakes that a launch finds on the way to a host.
std::vector<mistake> mistakes_of_ways() {
  return {
      {"a closed port",
       "launch",
       2,
       [](const test_hosts& hosts) {
         auto cluster = ssh_cluster(hosts);
         cluster.replace(cluster.rfind(']'), 1, ", \"-p\", \"2222\"]");
         return cluster + node_tables(hosts) + endless_run(hosts / "steps");
       },
       {"): no ssh server listens there"},
       "start it (sshd)"},
      {"no route",
       "launch",
       2,
       [](const test_hosts& hosts) {
         return ssh_cluster(hosts) + node_table("alpha", hosts.at(0).address()) +
                node_table("beta", "192.0.2.1") + endless_run(hosts / "steps");
       },
       {"node beta (192.0.2.1): there is no way from here"},
       "see the routes of this machine"},
      {"no answer",
       "launch",
       2,
       [](const test_hosts& hosts) {
         on_host(hosts.at(1),
                 turned_away("from " + hosts.home().address(), "ipproto tcp dport 22 blackhole"));
         return ssh_run(hosts, "", "");
       },
       {"node beta (10.77.0.3): it does not answer"},
       "ssh_options = [\"-o\", \"ConnectTimeout=30\"]",
       "node beta (10.77.0.3): no answer for 2 s; waiting for ssh to reach it and to start"},
  };
}

/// Nodes that do not reach each other, although each reaches the trainer.
std::vector<mistake> unreached_mistakes() {
  return {
      {"an address without a route",
       "launch",
       2,
       [](const test_hosts& hosts) {
         on_host(hosts.at(1),
                 "ip link add inner type bridge && ip addr add 10.99.0.3/24 dev inner && ip link "
                 "set inner up");
         return ssh_run(hosts, "", "address = \"10.99.0.3\"\n");
       },
       {"stage-0 on node alpha cannot reach stage-1 on node beta at 10.99.0.3:", "unreachable"},
       "name an address or network of node beta that the other nodes reach"},
      {"a route that leads nowhere",
       "launch",
       2,
       [](const test_hosts& hosts) {
         on_host(hosts.at(0), "ip route add blackhole " + hosts.at(1).address());
         return ssh_run(hosts, "", "");
       },
       {"stage-0 on node alpha cannot reach stage-1 on node beta at 10.77.0.3:",
        ": no route leads there from alpha: Invalid argument"},
       "let TCP from alpha in on beta (routes, firewalls of both)"},
      {"no way between two nodes",
       "launch",
       2,
       [](const test_hosts& hosts) {
         on_host(hosts.at(1), turned_away("from " + hosts.at(0).address(), "blackhole"));
         return ssh_run(hosts, "", "");
       },
       {"stage-0 on node alpha cannot reach stage-1 on node beta at 10.77.0.3:",
        ": no answer within 2.5 s"},
       "let TCP from alpha in on beta"},
      {"one way closed, at a launch",
       "launch",
       2,
       [](const test_hosts& hosts) {
         on_host(hosts.at(1), dropped("from " + hosts.at(0).address()));
         return ssh_run(hosts, "", fixed_port);
       },
       {"stage-0 on node alpha cannot reach stage-1 on node beta at 10.77.0.3:45678: no answer "
        "within 2.5 s",
        "the other way, beta to alpha, is open"},
       "let TCP from alpha in on beta"},
      {"MTU too large, at a launch",
       "launch",
       2,
       large_mtu,
       {"stage-0 on node alpha cannot reach stage-1 on node beta at 10.77.0.3:",
        ": small messages pass, but large ones do not: none of 64 KiB was acknowledged within"},
       "lower the MTU of the interface"},
  };
}

/// A node that the trainer turns away.
std::vector<mistake> join_mistakes() {
  return {
      {"another secret",
       "join",
       2,
       [](const test_hosts& hosts) {
         return awaited_cluster("10.77.0.1:4711", write_secret(hosts / "secret")) +
                endless_run(hosts / "steps");
       },
       {"does not prove that it has the cluster's secret"},
       "the secret (--secret-file)",
       "waiting for stage-0, stage-1: ",
       join_with_other_secret},
  };
}

/// Mistakes that doctor finds before a run, between hosts and in their clocks.
std::vector<mistake> doctor_mistakes() {
  return {
      {"two bridges with one address, before the run",
       "doctor",
       2,
       two_bridges,
       {"error", "alpha -> beta", "alpha and beta both listen at 172.17.0.1"},
       "name an address or network that differs"},
      {"one way closed",
       "doctor",
       2,
       [](const test_hosts& hosts) {
         on_host(hosts.at(1), dropped("from " + hosts.at(0).address()));
         return ssh_run(hosts, "", fixed_port);
       },
       {"error", "alpha -> beta", "the other way, beta to alpha, is open"},
       "firewall of beta for what comes in"},
      {"a clock a day off",
       "doctor",
       1,
       [](const test_hosts& hosts) {
         return ssh_run(hosts, "", "environment = [\"LD_PRELOAD=" TROUPE_SHIFTED_CLOCK "\"]\n");
       },
       {"warning", "beta", "its clock is 24.0 hours ahead of the trainer's"},
       "timedatectl set-ntp"},
      {"MTU too large",
       "doctor",
       2,
       large_mtu,
       {"error", "alpha -> beta", "small messages pass, but large ones do not"},
       "lower the MTU of the interface"},
  };
}

/// Mistakes that doctor finds before a run, in what a host has.
std::vector<mistake> doctor_mistakes_of_hosts() {
  return {
      {"a full disk on one host",
       "doctor",
       1,
       [](const test_hosts& hosts) {
         const auto worked = hosts / "worked";
         std::filesystem::create_directory(worked);
         on_host(hosts.at(1), "mount -t tmpfs -o size=1m tmpfs " + worked.string() +
                                  " && ! head -c 2000000 /dev/zero > " + worked.string() + "/full");
         return ssh_run(hosts, "", "working_folder = \"" + worked.string() + "\"\n");
       },
       {"warning", "beta", "disk", "it is full"},
       "make room there"},
      {"a /tmp that is read-only",
       "doctor",
       2,
       [](const test_hosts& hosts) {
         on_host(hosts.at(1), "mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp");
         return ssh_run(hosts, "", "");
       },
       {"error", "beta", "disk", "no process can listen in /tmp/troupe-0: Read-only file system"},
       "XDG_RUNTIME_DIR"},
      {"shared memory that is read-only",
       "doctor",
       2,
       [](const test_hosts& hosts) {
         on_host(hosts.at(1), "mount -o remount,ro /dev/shm");
         return ssh_run(hosts, "", "");
       },
       {"error", "beta", "shared memory", "/dev/shm cannot be used: Read-only file system"},
       "give the container more"},
      {"few open files",
       "doctor",
       2,
       [](const test_hosts& hosts) {
         return ssh_run(hosts, "", limited_program(hosts, "ulimit -n 52"));
       },
       {"error", "beta", "open files", "a process may have 52 open files there", "about 60"},
       "ulimit -n 60; LimitNOFILE=60"},
      {"a shell that prints",
       "doctor",
       1,
       [](const test_hosts& hosts) {
         print_at_logins(hosts, hosts.at(1));
         return ssh_run(hosts, "", "");
       },
       {"warning", "beta", "its login shell prints (\"Welcome to this host\")"},
       "have its start-up file print in interactive shells alone"},
  };
}

/// The variable of whoever measures (./dev bench cluster): a file.
constexpr const char* times_of_mistakes = "TROUPE_MISTAKE_TIMES";

/// Writes a line there for each attempt: "1.234 a closed port".
void note_time(const mistake& what, std::chrono::duration<double> took) {
  if (const char* const file = std::getenv(times_of_mistakes))
    std::ofstream(file, std::ios::app) << took.count() << ' ' << what.name << '\n';
}

bool has_all(const std::string& line, const std::vector<std::string>& words) {
  return std::all_of(words.begin(), words.end(),
                     [&line](const auto& word) { return line.find(word) != std::string::npos; });
}

/// Checks what is said on hosts where the mistake has been made. `begun`: the command, where it
/// goes on already. `let_others_end`: before it is begun here.
void check_said(const mistake& what, const test_hosts& hosts, const std::string& file,
                std::optional<running_program> begun, const std::function<void()>& let_others_end) {
  INFO(what.name);
  const auto go = [&] {
    if (!begun) let_others_end();
    auto ended = begun      ? begun->end()
                 : what.run ? what.run(hosts, file)
                            : hosts.home().run({TROUPE_COMMAND, what.command, file});
    begun.reset();
    note_time(what, ended.seconds);
    return ended;
  };
  program_outcome outcome;
  const bool in_time = takes_five_seconds_at_most(hosts, [&] {
    outcome = go();
    return outcome.seconds;
  });
  INFO(outcome.out);
  INFO(outcome.err);
  CHECK(outcome.code == what.code);
  CHECK(in_time);
  if (what.command != "doctor") {
    CHECK(has_all(outcome.last_line(), what.words));
    CHECK_THAT(outcome.last_line(), ContainsSubstring(what.remedy));
    CHECK_THAT(outcome.err, !ContainsSubstring(" -> stage-"));  // as if stages could meet
  } else {
    std::istringstream lines(outcome.out);
    bool said = false;
    for (std::string line; std::getline(lines, line);) said = said || has_all(line, what.words);
    CHECK(said);
    CHECK_THAT(outcome.out, ContainsSubstring(what.remedy));
  }
  CHECK_THAT(outcome.err, ContainsSubstring(what.before));
  CHECK(programs_left(hosts, 2s) == "");
}

/// A mistake on hosts of its own, where the command that is to say it goes on.
class said_mistake {
 public:
  explicit said_mistake(mistake what) : what_(std::move(what)) { begin(); }

  void check(const std::function<void()>& let_others_end) {
    check_said(what_, hosts_, file_, std::exchange(command_, std::nullopt), let_others_end);
  }

  void let_end() {
    if (command_) CHECK(command_->ends_within(60s));
  }

  /// Has doctor say it as well, as long as it has not; false: it need not.
  bool begin_doctor() {
    if (!std::exchange(what_.doctor_too, false)) return false;
    what_.name += ", before the run";
    what_.command = "doctor";
    begin();
    return true;
  }

 private:
  void begin() {
    if (!what_.run)
      command_.emplace(hosts_.home(),
                       std::vector<std::string>{TROUPE_COMMAND, what_.command, file_});
  }

  mistake what_;
  test_hosts hosts_{{"alpha", "beta"}};
  std::string file_ = write_config(hosts_ / "run.toml", what_.make(hosts_));
  std::optional<running_program> command_;
};

std::vector<mistake> all_mistakes() {
  std::vector<mistake> all;
  for (const auto& some : {mistakes_of_hosts(), mistakes_of_ways()})
    for (auto each : some) {
      each.doctor_too = !each.name.starts_with("two bridges");  // those it says of the edges
      all.push_back(std::move(each));
    }
  for (const auto& some :
       {unreached_mistakes(), join_mistakes(), doctor_mistakes(), doctor_mistakes_of_hosts()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace

// Most of the time the commands wait for what does not answer, so two of them go on beside each
// other, of which one begins when the one before the other ends. One that has taken too long is
// tried again alone, as there is no telling else what has held it up; who measures has each alone.
TEST_CASE("Each of the classic mistakes is said with cause and remedy, within 5 s") {
  skip_without_hosts();
  const std::size_t at_once = std::getenv(times_of_mistakes) == nullptr ? 2 : 1;
  std::deque<std::unique_ptr<said_mistake>> going;
  const auto check_first = [&going] {
    auto first = std::move(going.front());
    going.pop_front();
    first->check([&going] {
      for (const auto& each : going) each->let_end();
    });
    if (first->begin_doctor()) going.push_back(std::move(first));
  };
  for (const auto& each : all_mistakes()) {
    while (going.size() == at_once) check_first();
    going.push_back(std::make_unique<said_mistake>(each));
  }
  while (!going.empty()) check_first();
}

TEST_CASE("What a launch can bear it tells within 5 s, and goes on: clocks and shells that print") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  print_at_logins(hosts, hosts.at(0));
  const auto a_day_ahead = limited_program(hosts, "export LD_PRELOAD=" TROUPE_SHIFTED_CLOCK);
  const auto file = write_config(hosts / "run.toml",
                                 ssh_cluster(hosts) + node_table("alpha", hosts.at(0).address()) +
                                     node_table("beta", hosts.at(1).address(), a_day_ahead) +
                                     small_run(hosts / "weights.safetensors"));
  const std::vector<std::string> warnings = {
      "node alpha (10.77.0.2): its login shell prints (\"Welcome to this host\")",
      "node beta (10.77.0.3): its clock is 24.0 hours ahead of the trainer's: times in logs and "
      "files will not fit together; set it, and keep it by NTP (timedatectl set-ntp true"};
  std::size_t count = 0;
  program_outcome outcome;
  const bool in_time = takes_five_seconds_at_most(hosts, [&] {
    const auto begin = std::chrono::steady_clock::now();
    std::chrono::duration<double> told{0};
    count = 0;
    outcome = hosts.home().run({TROUPE_COMMAND, "launch", file}, [&](pid_t, std::string_view line) {
      for (const auto& each : warnings)
        if (line.find(each) != std::string_view::npos) {
          ++count;
          told = std::chrono::steady_clock::now() - begin;
        }
    });
    return told;
  });
  CHECK(outcome.code == 0);
  CHECK(count == warnings.size());
  CHECK(in_time);
  CHECK_THAT(outcome.err, !ContainsSubstring("node alpha (10.77.0.2): its clock"));
}
