#include "tests/multiprocess/hosts/slurm_cluster.hpp"

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "tests/multiprocess/hosts/launch_fixture.hpp"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

const std::string munged = "/usr/sbin/munged";
const std::string slurmctld = "/usr/sbin/slurmctld";
const std::string slurmd = "/usr/sbin/slurmd";

std::string configuration(const test_hosts& hosts, std::size_t count) {
  const auto at = [&](const std::string& name) { return (hosts / name).string(); };
  std::string text =
      "ClusterName=tests\nSlurmctldHost=home(" + hosts.home().address() +
      ")\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nStateSaveLocation=" + at("state") +
      "\nSlurmdSpoolDir=" + at("spool-%n") + "\nSlurmctldPidFile=" + at("slurmctld.pid") +
      "\nSlurmdPidFile=" + at("slurmd-%n.pid") + "\nSlurmctldLogFile=" + at("slurmctld.log") +
      "\nSlurmdLogFile=" + at("slurmd-%n.log") +
      "\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
      "JobAcctGatherType=jobacct_gather/none\nSelectType=select/cons_tres\n"
      "SelectTypeParameters=CR_Core\nSchedulerType=sched/builtin\nReturnToService=2\n"
      "KillWait=20\nMpiDefault=none\nSwitchType=switch/none\nMinJobAge=300\n"
      "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n";
  for (std::size_t i = 0; i < count; ++i)
    text += "NodeName=" + hosts.at(i).name() + " NodeAddr=" + hosts.at(i).address() + " CPUs=2\n";
  return text;
}

/// Looks again and again, for a minute at most.
bool wait_until(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + 1min;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(50ms);
  }
  return true;
}

}  // namespace

slurm_cluster::slurm_cluster(const test_hosts& hosts, std::size_t count) : hosts_(hosts) {
  namespace fs = std::filesystem;
  for (const auto& program : {munged, slurmctld, slurmd}) {
    INFO(program << " is not installed; `./dev setup` installs it");
    REQUIRE(fs::exists(program));
  }
  fs::create_directory(hosts / "state");
  write_config(hosts / "slurm.conf", configuration(hosts, count));
  const auto key = hosts / "munge.key";
  write_config(key, std::string(64, 'k') + hosts.home().address());
  fs::permissions(key, fs::perms(0600));
  std::vector<const test_host*> machines{&hosts.home()};
  for (std::size_t i = 0; i < count; ++i) machines.push_back(&hosts.at(i));
  for (const auto* where : machines)
    start(*where, {"/bin/sh", "-c",
                   "mkdir -m 755 /run/munge && exec " + munged +
                       " --foreground --force --key-file=" + key.string() +
                       " --log-file=/run/munge/log --pid-file=/run/munge/pid "
                       "--seed-file=/run/munge/seed --socket=/run/munge/munge.socket.2"});
  for (const auto* where : machines)
    REQUIRE(wait_until([where] {
      return where->run({"/usr/bin/munge", "--no-input", "--output=/dev/null"}).code == 0;
    }));
  start(hosts.home(), {slurmctld, "-D", "-f", (hosts / "slurm.conf").string()});
  for (std::size_t i = 0; i < count; ++i)
    start(hosts.at(i), words({slurmd, "-D", "-N", hosts.at(i).name()}));
  const bool idle = wait_until([&] {
    const auto seen = run({"sinfo", "--noheader", "--Node", "--format=%T"});
    std::string all;
    for (std::size_t i = 0; i < count; ++i) all += "idle\n";
    return seen.code == 0 && seen.out == all;
  });
  INFO(bytes_of(hosts / "slurmctld.log"));
  REQUIRE(idle);
}

void slurm_cluster::start(const test_host& where, const std::vector<std::string>& command) {
  daemons_.push_back(std::make_unique<running_program>(where, command));
}

std::vector<std::string> slurm_cluster::words(const std::vector<std::string>& command) const {
  std::vector<std::string> all{"/usr/bin/env", "SLURM_CONF=" + (hosts_ / "slurm.conf").string()};
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

program_outcome slurm_cluster::run(
    const std::vector<std::string>& command,
    const std::function<void(pid_t, std::string_view)>& on_line) const {
  return hosts_.home().run(words(command), on_line);
}

std::string slurm_cluster::submit(const std::string& script, const std::string& options) const {
  const auto file = write_config(hosts_ / "job.sh", "#!/bin/sh\n" + options + script);
  const auto outcome =
      run({"sbatch", "--parsable", "--output=" + (hosts_ / "job-%j.out").string(), file});
  REQUIRE(outcome.code == 0);
  return outcome.out.substr(0, outcome.out.find_first_of(";\n"));
}

std::string slurm_cluster::end_of(const std::string& job) const {
  std::string state;
  CHECK(wait_until([&] {
    const auto shown = run({"scontrol", "show", "job", job}).out;
    const auto at = shown.find("JobState=");
    state = at == std::string::npos ? "" : shown.substr(at + 9, shown.find(' ', at) - at - 9);
    return state != "PENDING" && state != "RUNNING" && state != "COMPLETING";
  }));
  return state;
}

std::string slurm_cluster::output_of(const std::string& job) const {
  return bytes_of(hosts_ / ("job-" + job + ".out"));
}

}  // namespace troupe::tests
