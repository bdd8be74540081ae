// `troupe launch --push`: the program and its libraries reach hosts that lack them, once.

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/multiprocess/hosts/launch_fixture.hpp"
#include "tests/multiprocess/recovery/calm_small_run.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

const std::string cache = "/root/.cache";
const std::string pushed = cache + "/troupe/pushed";

/// A folder of the host's own that hides what this machine has there.
void hide(const test_host& on, const std::string& folder, const std::string& options = "size=2g") {
  const auto done =
      on.run({"/bin/sh", "-c",
              "mkdir -p " + folder + " && mount -t tmpfs -o " + options + " tmpfs " + folder});
  REQUIRE(done.code == 0);
}

/// On a host, a command that only says something.
void replace(const test_hosts& hosts, const test_host& on, const std::string& command,
             const std::string& says) {
  const auto file = hosts / std::filesystem::path(command).filename().string();
  write_config(file, "#!/bin/sh\necho " + says + "\n");
  std::filesystem::permissions(file, std::filesystem::perms(0755));
  REQUIRE(on.run({"/bin/mount", "--bind", file, command}).code == 0);
}

std::string program_folder() {
  return std::filesystem::path(TROUPE_PROGRAM).parent_path();
}

/// Where LibTorch and what it brings lie on this machine.
std::string packages_folder() {
  return libtorch_folder().parent_path().parent_path();
}

program_outcome launch(const test_hosts& hosts, const std::string& flag) {
  const auto file = write_config(hosts / "run.toml", ssh_cluster(hosts) + node_tables(hosts) +
                                                         small_run(hosts / "launched.safetensors"));
  return hosts.home().run({TROUPE_COMMAND, "launch", flag, file});
}

/// The line of a host's files in the folder, by a shell's pattern, and nothing of a failed one.
std::string told_by(const test_host& on, const std::string& line) {
  const auto outcome = on.run({"/bin/sh", "-c", line});
  REQUIRE(outcome.code == 0);
  return outcome.out;
}

}  // namespace

TEST_CASE("A program is copied once to hosts that lack it, and to others not at all", "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto alone = weights_of_small_run();
  REQUIRE_FALSE(alone.empty());
  for (const auto* host : {&hosts.at(0), &hosts.at(1)}) hide(*host, cache);
  hide(hosts.at(1), program_folder());
  const auto runs = [&hosts, &alone](bool copies) {
    const auto outcome = launch(hosts, "--push");
    REQUIRE(outcome.code == 0);
    CHECK_THAT(outcome.err, !ContainsSubstring("node alpha (10.77.0.2): small_pipeline is"));
    CHECK((outcome.err.find("node beta (10.77.0.3): small_pipeline is copied there") !=
           std::string::npos) == copies);
    CHECK(bytes_of(hosts / "launched.safetensors") == alone);
  };
  runs(true);
  CHECK(told_by(hosts.at(1), "stat -c %a " + pushed) == "700\n");
  CHECK(told_by(hosts.at(1), "ls " + pushed + " | wc -l") == "1\n");
  CHECK(told_by(hosts.at(1), "cd " + pushed + "/* && sha256sum small_pipeline | cut -c1-64") ==
        told_by(hosts.at(1), "basename " + pushed + "/*"));
  runs(false);

  // What somebody has changed is not run; what was cut off is gone on with.
  told_by(hosts.at(1), "cd " + pushed + "/* && echo changed >> small_pipeline");
  runs(true);
  told_by(hosts.at(1), "cd " + pushed +
                           "/* && head -c 10000000 small_pipeline > part && rm "
                           "small_pipeline && chmod 600 part");
  const auto again = launch(hosts, "--push");
  CHECK(again.code == 0);
  CHECK_THAT(again.err, ContainsSubstring("small_pipeline is copied there ("));
  const auto whole = std::filesystem::file_size(TROUPE_PROGRAM);
  REQUIRE(whole > 10'000'000);
  CHECK_THAT(again.err,
             ContainsSubstring("(" + std::to_string((whole - 10'000'000) >> 20) + " MiB)"));
  CHECK(programs_left(hosts, 2s) == "");
}

TEST_CASE("LibTorch is copied where it is asked for, and missed with a remedy where not",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  for (const auto* host : {&hosts.at(0), &hosts.at(1)}) hide(*host, cache);
  hide(hosts.at(1), program_folder());
  hide(hosts.at(1), packages_folder());
  const auto without = launch(hosts, "--push");
  CHECK(without.code == 2);
  CHECK_THAT(without.last_line(), ContainsSubstring("node beta (10.77.0.3): a library that the"));
  CHECK_THAT(without.last_line(), ContainsSubstring("troupe launch --push-all"));
  const auto with = launch(hosts, "--push-all");
  CHECK(with.code == 0);
  CHECK_THAT(with.err, ContainsSubstring("node beta (10.77.0.3): libtorch_cpu.so is copied there"));
  CHECK_THAT(with.err, !ContainsSubstring("node alpha (10.77.0.2): libtorch_cpu.so"));
  CHECK(programs_left(hosts, 2s) == "");
}

TEST_CASE("A host that cannot take a program is refused within five seconds, and says why") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const auto& beta = hosts.at(1);
  hide(hosts.at(0), cache);
  hide(beta, program_folder());
  const auto refuses = [&hosts](const std::vector<std::string>& words) {
    program_outcome outcome;
    CHECK(takes_five_seconds_at_most(hosts, [&] {
      outcome = launch(hosts, "--push");
      return outcome.seconds;
    }));
    CHECK(outcome.code == 2);
    for (const auto& word : words) CHECK_THAT(outcome.last_line(), ContainsSubstring(word));
    CHECK(programs_left(hosts, 2s) == "");
  };
  hide(beta, cache, "size=1m");
  const std::string node = "node beta (10.77.0.3): ";
  refuses(
      {node + pushed + " has 1 MiB free, and what is to be pushed has", "make room on that disk"});
  hide(beta, cache, "ro");
  refuses(
      {node, pushed + ", cannot be used: mkdir: ", "Read-only file system", "permit this user"});
  hide(beta, cache);
  replace(hosts, beta, "/usr/bin/getconf", "glibc 2.12");
  refuses({node + "its C library is glibc 2.12", "build the program on the oldest of the hosts"});
  replace(hosts, beta, "/usr/bin/uname", "aarch64");
  refuses({node + "its processor is aarch64", "build the program there"});
  hosts.write_ssh_config(true, false);
  refuses({"node alpha (10.77.0.2): its host key is unknown to ssh"});
}

TEST_CASE("Only ssh copies a program", "[untimed]") {
  const scratch_folder folder;
  const auto file = write_config(
      folder / "run.toml", "[cluster]\nlaunch = \"local\"\nprogram = \"" TROUPE_PROGRAM "\"\n" +
                               node_table("alpha", "") + small_run(folder / "weights"));
  const auto outcome = run_other(TROUPE_COMMAND, {"launch", "--push", file});
  CHECK(outcome.code == 2);
  CHECK_THAT(outcome.last_line(), ContainsSubstring("copied to hosts over ssh alone"));
}
