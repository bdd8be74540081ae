#include "actors/stage/steps/plans.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "actors/base/errors.hpp"
#include "engine/schedule/plan_book.hpp"

namespace troupe::actors {

caf::result<acknowledged> on_announce_plan(stage_pointer self, const announce_plan& told) {
  auto& state = self->state;
  const auto refuse = [&](errc code, const std::string& why) {
    return to_caf({code, state.name + ": " + why});
  };
  if (told.number >= engine::plan_book::capacity)
    return refuse(errc::bad_frame, "plan " + std::to_string(told.number) +
                                       " is out of range: below " +
                                       std::to_string(engine::plan_book::capacity));
  if (told.kind != engine::step_kind::training && told.kind != engine::step_kind::evaluation)
    return refuse(errc::bad_frame, "a plan for no kind of step");
  if (told.chunks != state.modules.size())
    return refuse(errc::bad_config, "a plan for " + std::to_string(told.chunks) +
                                        " chunks, but the stage has " +
                                        std::to_string(state.modules.size()));
  auto proved = engine::proved_plan::prove(told.steps, told.microbatches, told.chunks, told.kind);
  if (!proved) return refuse(proved.error().code, "its plan is wrong: " + proved.error().text);
  state.plans.insert_or_assign(told.number, std::move(*proved));
  return acknowledged{};
}

result<engine::shared_plan> plan_of(const stage_state& state, const run_stage& order) {
  const auto all = std::reduce(order.shares.begin(), order.shares.end(), std::uint64_t{0});
  const auto parts = order.norm_shares.empty() || all == 0
                         ? all
                         : std::uint64_t{*std::ranges::max_element(order.shares)};  // groups
  if (!order.shares.empty() && order.shares.size() != state.end.replicas.logical())
    return fail(errc::bad_config, "a run for " + std::to_string(order.shares.size()) +
                                      " logical replicas, but it stands for " +
                                      std::to_string(state.end.replicas.logical()));
  if (!order.shares.empty() && parts == 0)
    return engine::proved_plan::empty(static_cast<std::uint32_t>(state.modules.size()), order.kind);
  const auto plan = state.plans.find(order.plan);
  if (plan == state.plans.end())
    return fail(errc::bad_config,
                "a run of plan " + std::to_string(order.plan) + ", which was not announced to it");
  if (plan->second->kind() != order.kind)
    return fail(errc::bad_config, "plan " + std::to_string(order.plan) +
                                      " is of another kind of step than the run that names it");
  if (!order.shares.empty() && parts != plan->second->microbatches())
    return fail(errc::bad_config, "a run of " + std::to_string(parts) +
                                      " micro-batches by a plan for " +
                                      std::to_string(plan->second->microbatches()));
  return plan->second;
}

}  // namespace troupe::actors
