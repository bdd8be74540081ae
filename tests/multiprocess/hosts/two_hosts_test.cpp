// What a launch over two hosts is used for: ResNet-50 on Fashion-MNIST, and hosts with addresses of
// IP version 6 alone.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/multiprocess/hosts/launch_fixture.hpp"
#include "tests/multiprocess/recovery/calm_small_run.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

/// Gives home and both hosts addresses of version 6, and takes the others of the hosts away.
void move_to_version_6(const test_hosts& hosts) {
  on_host(hosts.home(), "ip -6 addr add fd00:77::1/64 dev br0 nodad");
  for (int i = 0; i < 2; ++i)
    on_host(hosts.at(i), "ip -4 addr flush dev eth0 && ip -6 addr add fd00:77::" +
                             std::to_string(i + 2) + "/64 dev eth0 nodad");
  hosts.write_names("home", "127.0.0.1 localhost\nfd00:77::3 beta-by-name\n");
  const auto known = bytes_of(hosts / "known_hosts");
  const auto key = known.substr(known.find(' '), known.find('\n') - known.find(' '));
  std::ofstream(hosts / "known_hosts", std::ios::app)
      << "fd00:77::2" << key << "\nbeta-by-name" << key << "\n";
}

/// From a run's JSON lines, to the last bit.
std::vector<double> losses_of_steps(const std::filesystem::path& file) {
  std::vector<double> losses;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);)
    losses.push_back(nlohmann::json::parse(line).at("loss").get<double>());
  return losses;
}

}  // namespace

TEST_CASE("ResNet-50 learns Fashion-MNIST over two hosts to the bits of ./dev train on one",
          "[untimed]") {
  skip_without_hosts();
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist"))
    SKIP("Fashion-MNIST is not installed (./dev setup)");
  const std::string settings = TROUPE_SOURCE_DIR "/apps/resnet_pipeline/fashion_mnist.toml";
  const char* const wish = std::getenv("TROUPE_LONG");
  const bool long_version = wish != nullptr && *wish != '\0';  // two minutes a run
  const std::string steps = long_version ? "240" : "2";
  std::vector<std::string> networks{"sealed"};
  if (!long_version) networks.emplace_back("trusted");
  const test_hosts hosts({"alpha", "beta"});
  const auto plain = hosts / "plain";
  // Of one thread each, as on this machine with two cores; which numbers a convolution gives
  // depends on that.
  const auto flags = [&steps](const std::filesystem::path& results) {
    return std::vector<std::string>{"--steps",
                                    steps,
                                    "--no-eval",
                                    "--threads-per-stage",
                                    "1",
                                    "--save",
                                    results.string() + ".safetensors",
                                    "--json",
                                    results.string() + ".jsonl"};
  };
  constexpr std::chrono::minutes limit{20};
  std::vector<std::string> command{"--config", settings};
  std::ranges::move(flags(plain), std::back_inserter(command));
  const auto alone = run_other(TROUPE_PROGRAM, command, {}, limit);
  REQUIRE(alone.code == 0);
  const auto losses = losses_of_steps(plain.string() + ".jsonl");
  CHECK(std::to_string(losses.size()) == steps);
  const auto weights = bytes_of(plain.string() + ".safetensors");
  CHECK(weights.size() > 90'000'000);

  const auto cluster =
      write_config(hosts / "cluster.toml", ssh_cluster(hosts) + node_tables(hosts));
  for (const auto& network : networks) {
    INFO(network);
    const auto over = hosts / network;
    command = {TROUPE_COMMAND, "launch", settings, cluster, "--", "--network", network};
    std::ranges::move(flags(over), std::back_inserter(command));
    const auto launched = hosts.home().run(command, {}, limit);
    REQUIRE(launched.code == 0);
    CHECK_THAT(launched.err, ContainsSubstring("stage-0 (alpha, 10.77.0.2"));
    CHECK_THAT(launched.err, ContainsSubstring("-> stage-1 (beta, 10.77.0.3"));
    CHECK_THAT(launched.err,
               ContainsSubstring(network == "sealed" ? "): sealed tcp" : "): trusted"));
    CHECK(losses_of_steps(over.string() + ".jsonl") == losses);
    CHECK(bytes_of(over.string() + ".safetensors") == weights);
    CHECK(programs_left(hosts, 2s) == "");
  }
}

TEST_CASE("Two hosts that have addresses of IP version 6 alone train, sealed, to the same bits",
          "[untimed]") {
  skip_without_hosts();
  const test_hosts hosts({"alpha", "beta"});
  move_to_version_6(hosts);
  const auto alone = weights_of_small_run();
  struct way {
    const char* what;
    std::string alpha, beta, cluster;
  };
  const std::vector<way> ways{
      {"the interface towards the trainer", "", "", ""},
      {"an address each", "address = \"fd00:77::2\"\n", "address = \"[fd00:77::3]:45678\"\n", ""},
      {"a network", "", "", "network = \"fd00:77::/64\"\n"}};
  for (const auto& each : ways) {
    INFO(each.what);
    const auto weights = hosts / "launched.safetensors";
    std::filesystem::remove(weights);
    const auto file = write_config(
        hosts / "run.toml", ssh_cluster(hosts, each.cluster) +
                                node_table("alpha", "fd00:77::2", each.alpha) +
                                node_table("beta", "beta-by-name", each.beta) + small_run(weights));
    const auto outcome = hosts.home().run(as_launched(file));
    REQUIRE(outcome.code == 0);
    CHECK_THAT(outcome.err, ContainsSubstring("stage-0 (alpha, [fd00:77::2]:"));
    CHECK_THAT(outcome.err, ContainsSubstring("-> stage-1 (beta, [fd00:77::3]:"));
    CHECK_THAT(outcome.err, ContainsSubstring("): sealed tcp"));
    CHECK_FALSE(bytes_of(weights).empty());
    CHECK(bytes_of(weights) == alone);
    CHECK(programs_left(hosts, 2s) == "");
  }
}
