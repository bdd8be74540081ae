#include <algorithm>
#include <caf/send.hpp>
#include <cmath>
#include <optional>
#include <utility>

#include "actors/pipeline/edges/edge_plan.hpp"
#include "actors/pipeline/pipeline_ask.hpp"
#include "actors/step_end/step_coordinator.hpp"
#include "engine/collective/tree.hpp"
#include "engine/model/model.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_checker.hpp"
#include "engine/step/replay_window.hpp"
#include "optimizers/options.hpp"

namespace troupe::actors {
namespace {

/// How a pipeline's steps are planned; what it makes is checked.
engine::plan_book::planner planner_of(engine::schedule_choice schedule,
                                      const engine::model_layout& layout) {
  return [schedule = std::move(schedule), layout](
             engine::step_kind kind, std::uint32_t microbatches) -> result<engine::plan> {
    result<engine::plan> plan = kind == engine::step_kind::evaluation
                                    ? engine::forward_only(layout, microbatches)
                                    : engine::plan_step(schedule, layout.stages, microbatches);
    if (!plan) return plan;
    if (auto sound = engine::check(*plan, kind); !sound) return tl::unexpected(sound.error());
    return plan;
  };
}

/// The stage of the layer that has a parameter of this name; nullopt: no layer has.
std::optional<std::size_t> stage_of(const std::string& parameter, const engine::model& layers,
                                    const std::vector<engine::layer_range>& ranges,
                                    const engine::model_layout& layout) {
  for (std::uint32_t slice = 0; slice < ranges.size(); ++slice)
    for (auto i = ranges[slice].first; i < ranges[slice].last; ++i)
      for (const auto& each : layers.at(i)->parameters())
        if (each.name == parameter) return layout.slice_at(slice).stage;
  return std::nullopt;
}

std::uint32_t logical_of(const pipeline_options& options) {
  return options.logical_replicas > 0 ? options.logical_replicas : options.replicas;
}

/// `stages`: of all replicas together.
result<void> check_options(std::size_t stages, const pipeline_options& options) {
  const auto [replicas, logical] = std::pair(options.replicas, logical_of(options));
  if (replicas < 1 || stages % replicas != 0 || !engine::is_tree_of_shares(logical, replicas))
    return fail(errc::bad_config, std::to_string(logical) + " logical replicas on " +
                                      std::to_string(replicas) + " replicas, which have " +
                                      std::to_string(stages) +
                                      " stages together: that cannot be shared out");
  if (options.credits < 1 || options.credits > engine::max_credits)
    return fail(errc::bad_config, "credits = " + std::to_string(options.credits) +
                                      " is out of range: 1 to " +
                                      std::to_string(engine::max_credits));
  const double scale = options.scaler ? options.scaler->scale : options.loss_scale;
  if (!(scale > 0) || !std::isfinite(scale))
    return fail(errc::bad_config,
                "loss_scale = " + optimizers::to_text(scale) + " is out of range: above 0");
  if (!options.keepers.empty() && options.keepers.size() != stages)
    return fail(errc::bad_config, "keepers of " + std::to_string(options.keepers.size()) +
                                      " stages for a pipeline of " + std::to_string(stages));
  if (options.logs_edges && options.keepers.empty())
    return fail(errc::bad_config, "edges are logged for a pipeline that has keepers");
  return {};
}

}  // namespace

std::vector<stage_tie> ties_between(const engine::model& layers,
                                    const std::vector<engine::layer_range>& ranges,
                                    const engine::model_layout& layout) {
  std::vector<stage_tie> between;
  for (const auto& tie : engine::ties(layers)) {
    const auto one = stage_of(tie.one, layers, ranges, layout);
    const auto other = stage_of(tie.other, layers, ranges, layout);
    if (one && other && *one != *other) between.push_back({*one, tie.one, *other, tie.other});
  }
  return between;
}

pipeline::pipeline(caf::actor_system& system, std::vector<stage_actor> stages,
                   engine::schedule_choice schedule, const engine::model_layout& layout)
    : ask_(std::make_unique<requester>(system)),
      edges_(std::make_unique<edge_plan>()),
      open_(std::make_shared<open_steps>()),
      stages_(std::move(stages)),
      layout_(layout),
      window_(std::make_unique<engine::replay_window>()),
      planner_(planner_of(std::move(schedule), layout)),
      plans_(planner_),
      last_finish_(std::chrono::steady_clock::now()) {}

pipeline::pipeline(pipeline&&) = default;

pipeline::~pipeline() {
  if (!options_.data)
    for (const auto& each : feeders_) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  if (coordinator_) caf::anon_send_exit(coordinator_, caf::exit_reason::user_shutdown);
}

result<pipeline> pipeline::compose(caf::actor_system& system, std::vector<stage_actor> stages,
                                   const std::string& schedule, std::uint32_t credits) {
  return compose(system, std::move(stages), schedule, pipeline_options{.credits = credits});
}

result<pipeline> pipeline::compose(caf::actor_system& system, std::vector<stage_actor> stages,
                                   const std::string& schedule, const pipeline_options& options) {
  return compose(system, std::move(stages), engine::schedule_choice{schedule}, options);
}

result<pipeline> pipeline::compose(caf::actor_system& system, std::vector<stage_actor> stages,
                                   const engine::schedule_choice& schedule,
                                   const pipeline_options& options) {
  if (auto checked = check_options(stages.size(), options); !checked)
    return tl::unexpected(checked.error());
  const auto replicas = options.replicas;
  const auto layout =
      engine::layout_of(schedule, static_cast<std::uint32_t>(stages.size() / replicas));
  if (!layout) return tl::unexpected(layout.error());
  pipeline made(system, std::move(stages), schedule, *layout);
  made.options_ = options;
  made.replicas_ = replicas;
  made.logical_ = logical_of(options);
  made.shares_state_ = options.shares_state && replicas > 1;
  made.synced_norm_ = options.synced_norm && made.logical_ > 1;
  if (auto chosen = made.choose_edges(); !chosen) return tl::unexpected(chosen.error());
  const auto groups = made.choose_sums();
  if (!groups) return tl::unexpected(groups.error());
  if (auto invited = made.invite_edges(*groups); !invited) return tl::unexpected(invited.error());
  made.options_.logs_edges = options.logs_edges && made.edges_->empty() &&
                             std::ranges::all_of(*groups, &replica_group::is_replaceable);
  if (auto fed = made.choose_feeders(system); !fed) return tl::unexpected(fed.error());
  made.training_steps_ = options.steps_before;
  *made.window_ = engine::replay_window(options.accumulate);
  if (options.skip_bad_steps || options.scaler || options.clip_norm > 0 || !options.keepers.empty())
    made.coordinator_ = spawn_step_coordinator(
        system, {layout->stages * replicas, options.skip_bad_steps, options.clip_norm,
                 options.scaler, replicas, options.accumulate});
  if (auto connected = made.connect(*groups); !connected) return tl::unexpected(connected.error());
  for (std::size_t place = 0; place < made.stages_.size(); ++place) made.watch(place);
  return made;
}

neighbour pipeline::slice_at(std::uint32_t virtual_stage, std::uint32_t replica) const {
  const auto [stage, chunk] = layout_.slice_at(virtual_stage);
  return {caf::actor_cast<caf::strong_actor_ptr>(stages_[replica * layout_.stages + stage]), chunk};
}

std::vector<tied_parameter> pipeline::ties_of(std::size_t stage, std::uint32_t replica,
                                              const std::vector<stage_tie>& all) const {
  const auto base = std::size_t{replica} * layout_.stages;
  std::vector<tied_parameter> mine;
  const auto end = [&](const std::string& own, std::size_t other, const std::string& name) {
    mine.push_back({own, caf::actor_cast<caf::strong_actor_ptr>(stages_.at(base + other)), name});
  };
  for (const auto& tie : all) {
    if (tie.stage == stage) end(tie.parameter, tie.other_stage, tie.other_parameter);
    if (tie.other_stage == stage) end(tie.other_parameter, tie.stage, tie.parameter);
  }
  return mine;
}

connect_stage pipeline::surroundings_of(std::uint32_t stage, std::uint32_t replica,
                                        const replica_group& sums) const {
  connect_stage around{.before = {},
                       .after = {},
                       .feeder = {},
                       .credits = options_.credits,
                       .place = {replica * layout_.stages + stage},
                       .ties = ties_of(stage, replica, options_.ties),
                       .may_leave_out = options_.skip_bad_steps || options_.scaler,
                       .clips_norm = options_.clip_norm > 0,
                       .replicas = sums};
  around.replicas.own = replica;
  if (!options_.keepers.empty())
    around.keepers = options_.keepers[std::size_t{replica} * layout_.stages + stage];
  around.spare_keeper = options_.spare_keeper;
  around.logs = options_.logs_edges;
  around.ports = edges_->ports_of(std::size_t{replica} * layout_.stages + stage, stages_);
  if (coordinator_) around.coordinator = caf::actor_cast<caf::strong_actor_ptr>(coordinator_);
  for (std::uint32_t chunk = 0; chunk < layout_.chunks; ++chunk) {
    const std::uint32_t at = layout_.virtual_stage_of({stage, chunk});
    const bool first = at == 0, last = at + 1 == layout_.virtual_stages();
    around.before.push_back(first ? neighbour{} : slice_at(at - 1, replica));
    around.after.push_back(last ? neighbour{} : slice_at(at + 1, replica));
    if (first || last) around.feeder = caf::actor_cast<caf::strong_actor_ptr>(feeders_.at(replica));
  }
  return around;
}

result<std::vector<replica_group>> pipeline::choose_sums() {
  std::vector<replica_group> groups;
  std::vector<engine::sum_choice> choices;
  for (std::uint32_t stage = 0; stage < layout_.stages; ++stage) {
    auto& group = groups.emplace_back(replicas_of(stage));
    if (replicas_ < 2) continue;
    std::vector<engine::sum_offer> offers;
    for (const auto& each : group.stages) {
      auto offered = ask<sum_offered>(each, ask_sum_offer{});
      if (!offered) return tl::unexpected(offered.error());
      offers.push_back(std::move(offered->offer));
    }
    auto chosen = engine::choose_sum(offers, options_.sums);
    if (!chosen) return tl::unexpected(chosen.error());
    group.sums = chosen->way;
    choices.push_back(std::move(*chosen));
  }
  if (choices.empty()) return groups;
  sum_line_ = engine::to_line(choices);
  const auto sockets = std::max(engine::sockets_for(choices), edges_->reach());
  if (auto invited = invite(groups, sockets); !invited) return tl::unexpected(invited.error());
  return groups;
}

result<void> pipeline::choose_edges() {
  if (options_.edges == engine::edge_transport::link) return {};
  auto chosen =
      edge_plan::make(*ask_, stages_, layout_, options_.edges, options_.sums.network_is_trusted);
  if (!chosen) return tl::unexpected(chosen.error());
  *edges_ = std::move(*chosen);
  return {};
}

const std::string& pipeline::edge_line() const noexcept {
  return edges_->line();
}

// A process has its sockets on one network, so what one group needs holds for all.
result<void> pipeline::invite_edges(const std::vector<replica_group>& groups) {
  auto sockets = edges_->reach();
  for (const auto& each : groups) sockets = std::max(sockets, each.sockets);
  return edges_->invite(*ask_, stages_, sockets);
}

result<void> pipeline::invite(std::vector<replica_group>& groups, engine::socket_reach sockets) {
  for (std::size_t stage = 0; stage < groups.size(); ++stage) {
    auto& group = groups[stage];
    if (group.sums == engine::replica_sum_way::links) continue;
    group.sockets = sockets;
    auto invited = ask<replicas_invited>(stages_[stage], invite_replicas{replicas_, sockets});
    if (!invited) return tl::unexpected(invited.error());
    group.invitation = std::move(invited->invitation);
  }
  return {};
}

result<void> pipeline::connect(const std::vector<replica_group>& groups) {
  for (std::uint32_t replica = 0; replica < replicas_; ++replica)
    for (std::uint32_t stage = 0; stage < layout_.stages; ++stage) {
      const auto connected = ask<acknowledged>(stages_[replica * layout_.stages + stage],
                                               surroundings_of(stage, replica, groups[stage]));
      if (!connected) return tl::unexpected(connected.error());
    }
  return {};
}

}  // namespace troupe::actors
