#include "cluster/membership/node_group.hpp"

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cluster/membership/node_launcher.hpp"
#include "cluster/membership/stage_node.hpp"
#include "messages/link/loopback/loopback.hpp"

using namespace troupe;
using namespace troupe::cluster;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Nodes in threads, whose end counts as a failure unless it is expected by then.
class watched_threads final : public node_launcher {
 public:
  ~watched_threads() override { join(true); }

  std::atomic<int> ended = 0;
  std::atomic<int> failures = 0;
  std::string build = {};       // of the trainer's program, and of that of its nodes
  std::string stranger = {};    // of a node that tries each name first; empty: none does
  std::vector<error> refusals;  // of those; no thread changes it once all have joined

  actors::link_factory trainer_link() override {
    return [network = network_](messages::link_events events) {
      return messages::make_loopback_link(network, std::move(events));
    };
  }
  result<void> start(const std::string& name, const std::string& trainer) override {
    threads_.emplace_back(
        [this, settings = joined_node_settings{
                   .name = name, .trainer = trainer, .make_link = trainer_link(), .build = build}] {
          if (!stranger.empty()) try_as_stranger(settings);
          const auto how = run_node(settings, spawn_);
          if (!how || !expected_) ++failures;
          ++ended;
        });
    return {};
  }
  result<void> start_on(const std::string&, const std::string&, const std::string&) override {
    return fail(errc::bad_config, "no test does that");
  }
  result<void> give_up(const std::string&) override { return {}; }
  std::vector<node_end> ends() const override { return {}; }
  std::string required_build() const override { return build; }
  void expect_ends() override { expected_ = true; }
  void join(bool) override {
    for (auto& each : std::exchange(threads_, {})) each.join();
  }
  void kill() override {}
  void kill(const std::string&) override {}
  void suspend() override {}
  void resume() override {}

 private:
  void try_as_stranger(joined_node_settings settings) {
    settings.build = stranger;
    if (const auto how = run_node(settings, spawn_); !how) refusals.push_back(how.error());
  }

  host_spawner spawn_ = stage_host({});
  const messages::loopback_network network_;
  std::atomic<bool> expected_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

TEST_CASE("the end of a node counts as no failure from before the first is told to end") {
  const auto nodes = std::make_shared<watched_threads>();
  {
    const auto group = node_group::start(nodes, {"stage-0", "stage-1", "stage-2"}, "");
    REQUIRE(group);
    CHECK(nodes->ended == 0);
  }
  CHECK(nodes->ended == 3);
  CHECK(nodes->failures == 0);
}

TEST_CASE("a node of another build is refused, and the run goes on waiting for one of its own") {
  const auto nodes = std::make_shared<watched_threads>();
  nodes->build = "00ff";
  nodes->stranger = "00fe";
  {
    const auto group = node_group::start(nodes, {"stage-0"}, "");
    REQUIRE(group);
    REQUIRE(nodes->refusals.size() == 1);
    CHECK_THAT(nodes->refusals[0].text,
               ContainsSubstring("stage-0 on ") &&
                   ContainsSubstring("is another build of the program, 00fe and not 00ff as the "
                                     "trainer's; install the trainer's program there"));
  }
  CHECK(nodes->failures == 0);
}
