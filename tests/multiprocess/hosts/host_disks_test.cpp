// Checkpoints of hosts that share no disk: under one path, which is another disk on each.

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <string>

#include "tests/multiprocess/hosts/launch_fixture.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

std::string run_of(const fs::path& weights, int steps, const std::string& more = "") {
  return "[pipeline]\nstages = 2\nmicro_batches = 2\nthreads_per_stage = 1\n"
         "[model]\nname = \"small\"\n"
         "[data]\nsource = \"synthetic:3x32x32:10:48\"\n"
         "[optimizer]\nname = \"adam\"\nlr = 0.01\n"
         "[train]\nbatch_size = 8\nsteps = " +
         std::to_string(steps) + "\neval = false\nsave = \"" + weights.string() + "\"\n" + more;
}

void mount_disk(const test_host& host, const fs::path& folder) {
  REQUIRE(host.run({"mount", "-t", "tmpfs", "none", folder.string()}).code == 0);
}

}  // namespace

TEST_CASE("Hosts keep slices on disks of their own, and a run goes on when one disk is lost",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  const fs::path disk = hosts / "disk";
  fs::create_directory(disk);
  for (const auto* host : {&hosts.home(), &hosts.at(0), &hosts.at(1)}) mount_disk(*host, disk);
  const auto calm = run_program(
      {"--config", write_config(hosts / "calm.toml", run_of(hosts / "calm.safetensors", 8))});
  REQUIRE(calm.code == 0);
  const auto kept =
      "[checkpoint]\nstorage = \"local\"\nresume = \"auto\"\ndir = \"" + disk.string() + "\"\n";
  const auto launch = [&](int steps, const std::string& name) {
    const auto file = write_config(hosts / (name + ".toml"),
                                   ssh_cluster(hosts) + node_tables(hosts) +
                                       run_of(hosts / (name + ".safetensors"), steps, kept));
    return hosts.home().run(as_launched(file, {"--verbose"}));
  };
  const auto first = launch(4, "first");
  REQUIRE(first.code == 0);
  const auto files = [&](const test_host& host) {
    return host.run({"find", disk.string(), "-name", "*.safetensors"}).out;
  };
  CHECK(files(hosts.home()).empty());
  for (const auto* host : {&hosts.at(0), &hosts.at(1)})
    for (const std::string name : {"weights.stage-0", "weights.stage-1", "state.stage-0"})
      CHECK_THAT(files(*host), ContainsSubstring("/slices/step-000004-") &&
                                   ContainsSubstring(name + ".safetensors"));
  mount_disk(hosts.at(1), disk);  // another, empty one
  CHECK(files(hosts.at(1)).empty());
  const auto resumed = launch(8, "resumed");
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step 4"));
  CHECK_THAT(resumed.err, ContainsSubstring("beta no longer has 4 files of the checkpoint"));
  CHECK(bytes_of(hosts / "resumed.safetensors") == bytes_of(hosts / "calm.safetensors"));
  CHECK_THAT(files(hosts.at(1)), ContainsSubstring("/slices/step-000008-"));
}
