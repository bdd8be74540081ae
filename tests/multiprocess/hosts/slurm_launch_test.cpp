// `troupe launch` within an allocation of a real Slurm over two hosts: the bits of one machine, a
// clean end whenever the scheduler wants one, and nothing left whatever dies.

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/multiprocess/hosts/launch_fixture.hpp"
#include "tests/multiprocess/hosts/slurm_cluster.hpp"
#include "tests/multiprocess/recovery/calm_small_run.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

std::string slurm_table(const std::string& more = "") {
  return "[cluster]\nlaunch = \"slurm\"\nprogram = \"" TROUPE_PROGRAM "\"\n" + more;
}

/// Two hosts that know each other by the names that Slurm has for them.
struct allocation_hosts {
  test_hosts hosts{{"alpha", "beta"}};
  slurm_cluster slurm{(know_each_other(hosts), hosts)};

  [[nodiscard]] std::vector<std::string> launch(const std::string& file) const {
    return {"salloc", "--nodes=2", TROUPE_COMMAND, "launch", file};
  }
};

}  // namespace

TEST_CASE("A launch over an allocation of Slurm's trains to the bits of a run on one machine",
          "[untimed]") {
  skip_without_hosts();
  const allocation_hosts both;
  const auto& hosts = both.hosts;
  const auto alone = weights_of_small_run();
  const auto file =
      write_config(hosts / "run.toml", slurm_table() + small_run(hosts / "launched.safetensors"));
  const auto outcome = both.slurm.run(both.launch(file));
  REQUIRE(outcome.code == 0);
  CHECK_FALSE(alone.empty());
  CHECK(bytes_of(hosts / "launched.safetensors") == alone);
  CHECK_THAT(outcome.err, ContainsSubstring("stage-0 (alpha, 10.77.0.2"));
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1 (beta, 10.77.0.3"));
  CHECK(programs_left(hosts, 2s) == "");

  // The same from a script of sbatch's, with nodes that the file describes without their hosts.
  const auto described = write_config(
      hosts / "batch.toml",
      slurm_table() + "[[node]]\nname = \"first\"\nstages = [1]\n[[node]]\nname = \"second\"\n" +
          small_run(hosts / "batch.safetensors"));
  const auto job = both.slurm.submit("exec " TROUPE_COMMAND " launch " + described + "\n",
                                     "#SBATCH --nodes=2\n");
  const auto state = both.slurm.end_of(job);
  INFO(both.slurm.output_of(job));
  CHECK(state == "COMPLETED");
  CHECK_THAT(both.slurm.output_of(job), ContainsSubstring("stage-1 (first, 10.77.0.2"));
  CHECK(bytes_of(hosts / "batch.safetensors") == alone);
  CHECK(programs_left(hosts, 2s) == "");
}

TEST_CASE("A secret does not pass srun's stream in the clear", "[untimed]") {
  skip_without_hosts();
  const allocation_hosts both;
  const auto& hosts = both.hosts;
  const std::string word = "known-to-all-of-them";
  const auto secret = write_secret(hosts / "secret", word);
  const auto file =
      write_config(hosts / "run.toml", slurm_table() + small_run(hosts / "launched.safetensors") +
                                           "[link]\nsecret_file = \"" + secret.string() + "\"\n");
  const auto seen = hosts / "seen";
  {
    const running_program recorder(
        hosts.home(), {"/usr/bin/python3", "-c",
                       "import socket,sys\n"
                       "s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))\n"
                       "s.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)\n"
                       "s.bind(('br0', 0))\n"
                       "out = open(sys.argv[1], 'wb', buffering=0)\n"
                       "out.write(b'begin')\n"
                       "while True: out.write(s.recv(1 << 17)[54:])\n",
                       seen.string()});
    REQUIRE(wait_for_content(seen));
    REQUIRE(both.slurm.run(both.launch(file)).code == 0);
  }
  std::string digits;
  for (const char each : word) {
    constexpr std::string_view hexadecimal = "0123456789abcdef";
    digits += hexadecimal[static_cast<unsigned char>(each) >> 4];
    digits += hexadecimal[static_cast<unsigned char>(each) & 15];
  }
  const auto bytes = bytes_of(seen);
  CHECK(bytes.find("troupe agent, protocol") != std::string::npos);  // the stream was seen
  CHECK(bytes.find(digits) == std::string::npos);
  CHECK(bytes.find(word) == std::string::npos);
  CHECK(bytes.find("\"secret\"") == std::string::npos);
}

namespace {

/// Ends a run that goes on, and expects its weights.
void end_job(const allocation_hosts& both, const std::string& how) {
  const auto& hosts = both.hosts;
  const auto weights = hosts / (how + ".safetensors"), steps = hosts / (how + ".steps");
  const auto file = write_config(hosts / "run.toml", slurm_table() + endless_run(steps));
  const std::string line =
      std::string(TROUPE_PROGRAM) + " --config " + file + " --save " + weights.string();
  if (how == "salloc") {  // only the agents hear of it, and tell the launcher, which salloc signals
    bool cancelled = false;
    const auto outcome = both.slurm.run(
        {"salloc", "--nodes=2", "/bin/sh", "-c", "trap '' TERM HUP; " + line + "; exit $?"},
        at_line("-> stage-1", [&](pid_t) {
          cancelled = true;
          CHECK(wait_for_content(steps));
          CHECK(both.slurm.run({"scancel", "--user=root"}).code == 0);
        }));
    CHECK(cancelled);
  } else {
    const auto job = both.slurm.submit("exec " + line + "\n", "#SBATCH --nodes=2\n");
    REQUIRE(wait_for_content(steps));
    const auto cancelled = how == "scancel"
                               ? both.slurm.run({"scancel", job})
                               : both.slurm.run({"scancel", "--batch", "--signal=TERM", job});
    CHECK(cancelled.code == 0);
    const auto state = both.slurm.end_of(job);
    INFO(both.slurm.output_of(job));
    CHECK(state == (how == "scancel" ? "CANCELLED" : "FAILED"));
    CHECK_THAT(both.slurm.output_of(job), ContainsSubstring("stopping after the steps under way"));
  }
  CHECK(programs_left(hosts, 5s) == "");
  CHECK_FALSE(bytes_of(weights).empty());
}

}  // namespace

TEST_CASE("A job that is cancelled, or told to end, saves its weights and leaves nothing",
          "[untimed]") {
  skip_without_hosts();
  const allocation_hosts both;
  for (const std::string how : {"scancel", "signal", "salloc"}) {
    INFO(how);
    end_job(both, how);
  }
}

TEST_CASE("Slurm's warning of a preemption has the trainer write a checkpoint, and the run goes on",
          "[untimed]") {
  skip_without_hosts();
  const std::string to = GENERATE(as<std::string>{}, "steps", "batch");
  INFO(to);
  const allocation_hosts both;
  const auto& hosts = both.hosts;
  const auto kept = hosts / "checkpoints";
  const auto file = write_config(
      hosts / "run.toml", slurm_table() + endless_run(hosts / "steps") + "[checkpoint]\ndir = \"" +
                              kept.string() + "\"\non_signal = \"SIGUSR1\"\nkeep = 1000\n");
  const auto job =
      both.slurm.submit("exec " TROUPE_PROGRAM " --config " + file + "\n", "#SBATCH --nodes=2\n");
  REQUIRE(wait_for_content(hosts / "steps"));
  // As --signal=USR1@60 and --signal=B:USR1@60 send it.
  auto signal = std::vector<std::string>{"scancel", "--signal=USR1"};
  if (to == "batch") signal.emplace_back("--batch");
  signal.push_back(job);
  CHECK(both.slurm.run(signal).code == 0);
  const auto checkpoints = [&] {
    std::size_t count = 0;
    std::error_code why;
    for (std::filesystem::directory_iterator at(kept, why), end; !why && at != end;
         at.increment(why))
      if (at->path().filename().string().starts_with("step-")) ++count;
    return count;
  };
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (checkpoints() == 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(5ms);
  CHECK(checkpoints() == 1);
  CHECK(both.slurm.run({"scancel", job}).code == 0);
  CHECK(both.slurm.end_of(job) == "CANCELLED");
  INFO(both.slurm.output_of(job));
  CHECK_THAT(both.slurm.output_of(job), ContainsSubstring("a signal asks for a checkpoint"));
  CHECK(checkpoints() >= 1);
  CHECK(programs_left(hosts, 5s) == "");
}

TEST_CASE("Whatever is killed of a launch by Slurm, nothing is left on any host") {
  skip_without_hosts();
  const allocation_hosts both;
  const auto& hosts = both.hosts;
  for (const std::string victim : {"stage-1", "agent", "launcher", "srun"}) {
    INFO(victim);
    const auto steps = hosts / (victim + ".steps");
    const auto file =
        write_config(hosts / "run.toml", slurm_table("silence = 2\n") + endless_run(steps));
    bool killed = false;
    const auto outcome = both.slurm.run(both.launch(file), at_line("-> stage-1", [&](pid_t) {
                                          killed = true;
                                          CHECK(wait_for_content(steps));
                                          if (victim == "launcher")
                                            kill_on(hosts.home(), "--config");
                                          if (victim == "srun")
                                            kill_on(hosts.home(), "--nodelist=beta");
                                          if (victim == "agent") kill_on(hosts.at(1), "--agent");
                                          if (victim == "stage-1") kill_on(hosts.at(1), "stage-1");
                                        }));
    CHECK(killed);
    // No stream closes where srun dies: agents notice that the launcher is silent.
    CHECK(programs_left(hosts, 4s) == "");
    if (victim == "launcher") continue;
    CHECK(outcome.code == 1);
    CHECK_THAT(outcome.err, ContainsSubstring("node beta (beta)"));
  }
}

TEST_CASE("What cannot be launched by Slurm is refused in one line, with a remedy", "[untimed]") {
  skip_without_hosts();
  const allocation_hosts both;
  const auto& hosts = both.hosts;
  const auto refused = [&](const std::string& nodes, const std::vector<std::string>& allocation,
                           const std::vector<std::string>& words) {
    const auto file =
        write_config(hosts / "run.toml", slurm_table("join_timeout = 10\n") + nodes +
                                             small_run(hosts / "launched.safetensors"));
    auto command = allocation;
    command.insert(command.end(), {TROUPE_PROGRAM, "--config", file});
    const auto outcome = both.slurm.run(command);
    CHECK(outcome.code == 2);
    for (const auto& word : words) CHECK_THAT(outcome.err, ContainsSubstring(word));
    CHECK(programs_left(hosts, 4s) == "");
  };
  const std::vector<std::string> two{"salloc", "--quiet", "--nodes=2"};
  refused("", {}, {"run.toml:2:10: cluster.launch: ", "in no allocation of Slurm's", "salloc"});
  refused("[[node]]\nname = \"first\"\n[[node]]\nname = \"second\"\n",
          {"salloc", "--quiet", "--nodes=1"},
          {"the allocation has 1 host (alpha), but there are 2 [[node]] tables",
           "ask for more (sbatch --nodes"});
  refused("[[node]]\nname = \"first\"\nhost = \"gamma\"\n[[node]]\nname = \"second\"\n", two,
          {"node first: gamma is not in the allocation, which has alpha, beta"});
  refused("[[node]]\nname = \"first\"\n[[node]]\nname = \"second\"\nprogram = \"/nowhere/it\"\n",
          two,
          {"node second (beta): the program /nowhere/it cannot be started there",
           "copy it to that host"});
  refused("[[node]]\nname = \"first\"\n[[node]]\nname = \"second\"\nprogram = \"" TROUPE_OTHER
          "\"\n",
          two, {"node second (beta): the program there", "another build"});
  refused("", {"salloc", "--quiet", "--nodes=2", "/usr/bin/env", "PATH=/nowhere"},
          {"there is no srun in PATH; install it (slurm-client)"});
}
