#pragma once

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "engine/model/model.hpp"
#include "tests/all_messages.hpp"
#include "tests/unit/actors/limited_nodes.hpp"

namespace troupe::tests {

/// A pipeline of two stages on nodes of their own, and its driver on a third.
struct remote_pipeline {
  remote_pipeline(engine::model layers, std::size_t cut, const messages::limits& bounds,
                  const actors::piece_limits& pieces = {}, const std::string& optimizer = "adamw",
                  const std::string& schedule = "1f1b")
      : first("stage-0", network, all_messages(), bounds),
        second("stage-1", network, all_messages(), bounds),
        driver("trainer", network, all_messages(), bounds) {
    const auto all = layers.size();
    publish(first, layers, {0, cut}, optimizer);
    publish(second, layers, {cut, all}, optimizer);
    auto made = actors::pipeline::compose(driver.system,
                                          {driver.find<actors::stage_actor>(first, "stage"),
                                           driver.find<actors::stage_actor>(second, "stage")},
                                          schedule, actors::pipeline_options{.pieces = pieces});
    REQUIRE(made);
    stages.emplace(std::move(*made));
  }
  ~remote_pipeline() {
    stages.reset();
    for (const auto& each : published) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  void publish(limited_node& where, engine::model& layers, engine::layer_range range,
               const std::string& optimizer) {
    actors::stage_blueprint parts{.name = "stage-" + std::to_string(published.size()),
                                  .optimizer = optimizer};
    parts.slices.push_back(*actors::take_slice(layers, range, {}));
    published.push_back(*actors::spawn_stage_with_optimizer(where.system, std::move(parts),
                                                            optimizers::built_in()));
    where.publish("stage", published.back());
  }

  messages::loopback_network network;
  limited_node first, second, driver;
  std::vector<actors::stage_actor> published;
  std::optional<actors::pipeline> stages;
};

}  // namespace troupe::tests
