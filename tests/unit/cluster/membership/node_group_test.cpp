#include "cluster/membership/node_group.hpp"

#include <atomic>
#include <catch2/catch_test_macros.hpp>
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

namespace {

/// Nodes in threads, whose end counts as a failure unless it is expected by then.
class watched_threads final : public node_launcher {
 public:
  ~watched_threads() override { join(true); }

  std::atomic<int> ended = 0;
  std::atomic<int> failures = 0;

  actors::link_factory trainer_link() override {
    return [network = network_](messages::link_events events) {
      return messages::make_loopback_link(network, std::move(events));
    };
  }
  result<void> start(const std::string& name, const std::string& trainer) override {
    threads_.emplace_back(
        [this, settings = joined_node_settings{
                   .name = name, .trainer = trainer, .make_link = trainer_link()}] {
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
  void expect_ends() override { expected_ = true; }
  void join(bool) override {
    for (auto& each : std::exchange(threads_, {})) each.join();
  }
  void kill() override {}
  void kill(const std::string&) override {}
  void suspend() override {}
  void resume() override {}

 private:
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
