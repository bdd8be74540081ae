#pragma once

#include <ATen/Parallel.h>

#include <caf/actor_control_block.hpp>
#include <caf/actor_system.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/messages/common.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/protocol.hpp"
#include "actors/remote/node.hpp"
#include "actors/system.hpp"
#include "engine/collective/port.hpp"
#include "engine/model/recompute.hpp"
#include "messages/link/loopback/loopback.hpp"
#include "tests/parity/small_models.hpp"

namespace troupe::tests {

/// A batch norm of two numbers has gradients of any size: a larger rate may end in infinity.
constexpr double rate = 0.001;
constexpr std::uint32_t microbatches = 4;

using collectives = std::shared_ptr<const engine::collective_maker>;

/// What is trained, the same on the CPU and on devices.
struct task {
  std::function<engine::model()> build;
  std::vector<engine::batch> batches;
  std::vector<std::size_t> cuts = {};  // one a chunk of a stage, but the first
  std::string schedule = "1f1b";
  std::string optimizer = "sgd";
  optimizers::options options = {{"momentum", 0.9}};
  actors::update_rules rules = {};
  std::vector<std::string> recompute = {};
  std::uint32_t replicas = 1;
  std::uint32_t logical = 0;  // 0: as many as replicas
  bool shares_state = false;
  bool synced_norm = false;
  double clip_norm = 0;
  double loss_scale = 1;
  bool skips_bad_steps = false;
  bool fast = false;                                             // the sums over replicas
  engine::edge_transport edges = engine::edge_transport::link;   // between processes
  std::vector<std::vector<caf::strong_actor_ptr>> keepers = {};  // of versions, by stage
  std::uint64_t steps_before = 0;
  std::uint32_t microbatches = tests::microbatches;
  double rate = tests::rate;
  bool channels_last = false;
};

/// A way to carry out a task that changes no bit.
struct way {
  std::uint32_t replicas = 1;
  std::vector<std::size_t> cuts = {};
  std::string schedule = "1f1b";
  std::vector<std::string> recompute = {};
  bool shares_state = false;
};

/// Where actors live.
struct home {
  actors::system_config config;
  caf::actor_system system{config};
  actors::message_registry types;
  std::unique_ptr<actors::node> node;  // null: these are all that there are
};

using homes = std::vector<std::shared_ptr<home>>;

/// Homes that are to each other what processes are: each a node, on one loopback network.
inline homes separate_homes(std::size_t count) {
  const messages::loopback_network network;
  homes all;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& one = all.emplace_back(std::make_shared<home>());
    actors::add_protocol(one->types);
    auto node = actors::node::start(
        one->system, one->types, {.name = "home-" + std::to_string(i), .on_node_down = {}},
        [network](auto on) { return messages::make_loopback_link(network, std::move(on)); });
    REQUIRE(node);
    one->node = std::move(*node);
  }
  return all;
}

/// Stages of all replicas in one process, which end with it; those of one replica live in the
/// homes by turns.
class company {
 public:
  company(const task& what, const std::vector<c10::Device>& devices,
          const collectives& sums_by = nullptr, std::shared_ptr<home> in = std::make_shared<home>())
      : company(what, devices, sums_by, homes{std::move(in)}) {}
  company(const task& what, const std::vector<c10::Device>& devices, const collectives& sums_by,
          homes in)
      : homes_(std::move(in)) {
    for (std::uint32_t replica = 0; replica < what.replicas; ++replica)
      spawn(what, devices, sums_by);
  }
  company(const company&) = delete;
  company& operator=(const company&) = delete;
  ~company() {
    for (const auto& each : spawned_) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  result<actors::pipeline> try_compose(const task& what) {
    return actors::pipeline::compose(
        homes_.front()->system, stages_, what.schedule,
        {.ties = actors::ties_between(what.build(), ranges_, layout_of(what)),
         .skip_bad_steps = what.skips_bad_steps,
         .loss_scale = what.loss_scale,
         .steps_before = what.steps_before,
         .clip_norm = what.clip_norm,
         .replicas = what.replicas,
         .logical_replicas = what.logical > 0 ? what.logical : what.replicas,
         .shares_state = what.shares_state,
         .synced_norm = what.synced_norm,
         .sums = {.fast = what.fast},
         .edges = what.edges,
         .keepers = what.keepers});
  }
  actors::pipeline compose(const task& what) {
    auto made = try_compose(what);
    if (!made) FAIL(made.error().text);
    return std::move(*made);
  }
  [[nodiscard]] const std::vector<actors::stage_actor>& stages() const { return stages_; }
  /// What is composed from now on has another actor there.
  void put(std::size_t stage, actors::stage_actor by) { stages_.at(stage) = std::move(by); }
  void kill(std::size_t stage) { caf::anon_send_exit(spawned_.at(stage), caf::exit_reason::kill); }

 private:
  [[nodiscard]] engine::model_layout layout_of(const task& what) const {
    return engine::layout_for({what.schedule}, static_cast<std::uint32_t>(ranges_.size())).value();
  }

  void spawn(const task& what, const std::vector<c10::Device>& devices,
             const collectives& sums_by) {
    auto layers = what.build();
    engine::to_memory_format(layers, what.channels_last);
    ranges_ = engine::slices_between(what.cuts, layers.size());
    const auto again =
        engine::recomputed_layers(engine::layer_names(layers), what.recompute).value();
    const auto layout = layout_of(what);
    for (std::uint32_t stage = 0; stage < layout.stages; ++stage) {
      actors::stage_blueprint blueprint{
          .name = "stage-" + std::to_string(stages_.size()),
          .options = {.channels_last = what.channels_last,
                      .device = devices.at(stages_.size() % devices.size()),
                      .seed = seed,
                      .metrics = engine::built_in_metrics()},
          .optimizer = what.optimizer,
          .optimizer_options = what.options,
          .rules = what.rules,
          .libraries = {.sums = sums_by, .copies = sums_by}};
      for (std::uint32_t chunk = 0; chunk < layout.chunks; ++chunk) {
        auto slice =
            actors::take_slice(layers, ranges_.at(layout.virtual_stage_of({stage, chunk})), again)
                .value();
        blueprint.slices.push_back(std::move(slice));
      }
      auto& in = *homes_.at(stages_.size() % homes_.size());
      const auto made = actors::spawn_stage_with_optimizer(in.system, std::move(blueprint),
                                                           optimizers::built_in());
      if (!made) FAIL(made.error().text);
      spawned_.push_back(*made);
      stages_.push_back(seen_from_first(in, *made));
    }
  }

  [[nodiscard]] actors::stage_actor seen_from_first(const home& in,
                                                    const actors::stage_actor& stage) const {
    if (!in.node) return stage;
    const auto address = in.node->address_of(caf::actor_cast<caf::strong_actor_ptr>(stage));
    return caf::actor_cast<actors::stage_actor>(homes_.front()->node->resolve(address));
  }

  homes homes_;
  std::vector<actors::stage_actor> spawned_;
  std::vector<actors::stage_actor> stages_;  // the same, for actors of the first home
  std::vector<engine::layer_range> ranges_;
};

/// A version can be taken between steps only.
inline bool is_within_step(caf::actor_system& system, const actors::stage_actor& stage) {
  bool within = false;
  caf::scoped_actor self(system);
  self->request(stage, std::chrono::seconds(20), actors::take_version{0})
      .receive([](const actors::acknowledged&) {}, [&](const caf::error&) { within = true; });
  return within;
}

struct trained {
  std::string line;  // how replicas sum
  std::vector<double> losses;
  std::vector<engine::named_tensor> weights;
  std::vector<engine::named_tensor> state;
  engine::step_result dry;  // before the first step
};

/// What the stages hold.
inline void read_stages(actors::pipeline& pipeline, trained& into) {
  into.weights = pipeline.read_weights().value();
  into.state = pipeline.read_state().value();
}

inline void check_same(const trained& one, const trained& other) {
  CHECK(one.losses == other.losses);
  CHECK(one.dry.loss == other.dry.loss);
  check_same(one.dry.gradients, other.dry.gradients);
  check_same(one.dry.buffers, other.dry.buffers);
  check_same(one.weights, other.weights);
  check_same(one.state, other.state);
}

/// Of the first batch a dry run, and of each a step and an evaluation.
inline trained train(company& all, const task& what) {
  auto pipeline = all.compose(what);
  trained result{.line = pipeline.sum_line(), .losses = {}, .weights = {}, .state = {}, .dry = {}};
  auto dry = pipeline.dry_run(what.batches.front(), what.microbatches);
  if (!dry) FAIL(dry.error().text);
  result.dry = std::move(*dry);
  for (const auto& batch : what.batches) {
    const auto outcome = pipeline.train(batch, what.microbatches, what.rate);
    if (!outcome) FAIL(outcome.error().text);
    const auto tested = pipeline.evaluate(batch, what.microbatches);
    if (!tested) FAIL(tested.error().text);
    REQUIRE(tested->metrics.size() == 2);
    result.losses.insert(result.losses.end(), {outcome->loss, tested->loss});
    result.losses.insert(result.losses.end(), tested->metrics.begin(), tested->metrics.end());
  }
  read_stages(pipeline, result);
  return result;
}

inline trained train(const task& what) {
  company all(what, {c10::Device(c10::kCPU)});
  return train(all, what);
}

/// The bits of the task as it is, which are those of all the ways.
inline trained check_ways(task what, const std::vector<way>& ways) {
  at::set_num_threads(1);
  auto expected = train(what);
  for (const auto& [replicas, cuts, schedule, recompute, shares_state] : ways) {
    INFO(replicas << " replicas of " << cuts.size() + 1 << " slices, " << schedule);
    what.replicas = replicas;
    what.cuts = cuts;
    what.schedule = schedule;
    what.recompute = recompute;
    what.shares_state = shares_state;
    check_same(expected, train(what));
  }
  return expected;
}

}  // namespace troupe::tests
