#include "cluster/training/node_run.hpp"

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <new>

#include "cluster/config/trainer_config.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/cluster/membership/watched_threads.hpp"

using namespace troupe;

TEST_CASE("What a run's driver throws is the run's error, and its nodes are told") {
  std::promise<error> told;
  auto nodes = std::make_unique<tests::watched_threads>();
  nodes->on_failure = [&told](const error& why) { told.set_value(why); };
  const cluster::trainer_config config{};
  cluster::run_control control(config.train, config.config_files);
  const auto ended = error_of(cluster::run_nodes(
      {.where = std::move(nodes),
       .listen = "",
       .names = {"stage-0"},
       .progress = {},
       .drive = [](cluster::node_group&) -> result<void> { throw std::bad_alloc(); }},
      config.checkpoint, config.cluster, control));
  CHECK(ended.code == errc::handler_failed);
  CHECK(ended.text == "there is no memory left");
  auto word = told.get_future();
  REQUIRE(word.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  CHECK(word.get().text == "stage-0: the run has failed: there is no memory left");
}
