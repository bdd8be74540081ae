#pragma once

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/pipeline/data/data_actor.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/recovery/keeper_actor.hpp"
#include "actors/system.hpp"
#include "engine/data/dataset.hpp"
#include "tests/unit/actors/stage/idle_stage.hpp"

namespace troupe::tests {

/// Stages that compute nothing, of a pipeline that can replace them, or cannot. `data`: what a
/// reader of its own has, as on another node.
struct idle_company {
  explicit idle_company(std::size_t count, actors::pipeline_options options = {},
                        const std::shared_ptr<const engine::dataset>& data = {},
                        bool can_replace = true) {
    if (data) options.data = add_reader(data);
    std::vector<actors::stage_actor> stages;
    for (std::size_t i = 0; i < count; ++i) stages.push_back(add());
    keeper = actors::spawn_keeper(system, optimizers::built_in());
    const auto kept = caf::actor_cast<caf::strong_actor_ptr>(keeper);
    if (can_replace) options.keepers = std::vector(count, std::vector{kept});
    options.logs_edges = can_replace;
    auto composed = actors::pipeline::compose(system, stages, "1f1b", options);
    REQUIRE(composed);
    pipeline = std::make_unique<actors::pipeline>(std::move(*composed));
  }
  ~idle_company() {
    pipeline.reset();
    for (const auto& each : all) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
    for (const auto& each : readers) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(keeper, caf::exit_reason::user_shutdown);
  }

  actors::stage_actor add() {
    got.push_back(std::make_shared<received>());
    got.back()->throws_at = next_throws_at;
    all.push_back(system.spawn(idle_stage, got.back()));
    return all.back();
  }
  actors::data_actor add_reader(const std::shared_ptr<const engine::dataset>& data) {
    readers.push_back(actors::spawn_data(system, data));
    return readers.back();
  }
  engine::step_key begin(engine::step_kind kind, std::uint32_t microbatches = 2) {
    const auto key = pipeline->next_step();
    REQUIRE(pipeline->begin(key, {kind, microbatches, microbatches, 0.1}));
    return key;
  }
  void lose(std::size_t stage) {
    const auto whom = caf::actor_cast<caf::strong_actor_ptr>(all.at(stage));
    const caf::exit_msg exit{whom->address(), actors::to_caf({errc::peer_lost, "it was lost"})};
    whom->enqueue(nullptr, caf::make_message_id(), caf::make_message(exit), nullptr);
  }
  /// Another stage takes that place, where a version of so many steps is kept.
  result<std::uint64_t> replace(std::size_t stage, std::uint64_t version,
                                const actors::data_actor& reader = {}) {
    const auto kept = caf::actor_cast<caf::strong_actor_ptr>(keeper);
    return pipeline->replay({actors::stage_replacement{stage, add(), {{version, kept}}, kept}},
                            reader);
  }

  actors::system_config config;
  caf::actor_system system{config};
  actors::keeper_actor keeper;
  std::uint64_t next_throws_at = 0;      // of the next stage
  std::vector<actors::stage_actor> all;  // also those that were lost
  std::vector<actors::data_actor> readers;
  std::vector<std::shared_ptr<received>> got;
  std::unique_ptr<actors::pipeline> pipeline;
};

}  // namespace troupe::tests
