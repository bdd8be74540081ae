#include "actors/pipeline/pipeline_ask.hpp"

#include <algorithm>

#include "actors/futures/combine.hpp"
#include "actors/pipeline/data/feed.hpp"
#include "actors/recovery/failed_work.hpp"
#include "engine/collective/norm/norm_groups.hpp"
#include "engine/collective/shares.hpp"
#include "engine/collective/tree.hpp"
#include "engine/model/metric.hpp"
#include "engine/schedule/plan_checker.hpp"

namespace troupe::actors {

engine::step_key pipeline::next_step() {
  return {epoch_id{0}, step_id{++last_step_}};
}

// Steps are begun before the decision on the one before, which says what a scaler makes of it.
double pipeline::loss_scale_of(const step_order& order) const {
  if (order.dry_run) return order.loss_scale;
  if (!options_.scaler) return options_.loss_scale;
  return training_steps_ > options_.steps_before ? 0 : options_.scaler->scale;
}

result<void> pipeline::announce(std::uint32_t number, engine::step_kind kind, engine::plan plan) {
  std::vector<future<acknowledged>> answers;
  for (std::size_t i = 0; i < stages_.size(); ++i)
    answers.push_back(tell(stages_[i], announce_plan{number, kind, plan.microbatches, plan.chunks,
                                                     plan.stages[i % layout_.stages]}));
  return all(std::move(answers)).get().map([](const auto&) {});
}

result<void> pipeline::plan_replica(run_stage& run, std::uint32_t replica,
                                    const step_order& order) {
  const auto mine = engine::share_of_batch(order.microbatches, replica, replicas_);
  run.first_microbatch = static_cast<std::uint32_t>(mine.first);
  const auto shares = engine::shares_of_batch(order.microbatches, logical_);
  const auto own = logical_ / replicas_;
  run.shares.assign(shares.begin() + replica * own, shares.begin() + (replica + 1) * own);
  auto count = static_cast<std::uint32_t>(mine.size());
  if (synced_norm_ && order.kind == engine::step_kind::training) {
    if (auto fit = check_groups(shares); !fit) return fit;
    count = engine::norm_groups(shares, replica, replicas_).count();
    run.norm_shares = shares;
  }
  if (count == 0) return {};
  auto plan = plans_.plan_for(order.kind, count);
  if (!plan) return tl::unexpected(plan.error());
  run.plan = plan->number;
  return plan->fresh ? announce(plan->number, order.kind, *std::move(plan->fresh)) : result<void>();
}

/// Replicas whose numbers of groups differ must come to those that they have in common in one
/// order, or each could wait for a sum that the other has not come to.
result<void> pipeline::check_groups(const std::vector<std::uint32_t>& shares) {
  const engine::norm_groups groups(shares, 0, replicas_);
  const auto most = groups.count();
  for (std::uint32_t rank = 1; rank < replicas_; ++rank) {
    const auto fewer = groups.count_of(rank);
    if (fewer == most || fewer == 0 || group_counts_.contains(most)) continue;
    const auto longer = planner_(engine::step_kind::training, most);
    const auto shorter = planner_(engine::step_kind::training, fewer);
    if (!longer || !shorter) return tl::unexpected(longer ? shorter.error() : longer.error());
    if (!engine::is_part_of(*shorter, *longer))
      return fail(errc::bad_config,
                  "batch_norm = \"sync\": schedule " + longer->schedule + " orders " +
                      std::to_string(fewer) + " micro-batches of one replica otherwise than " +
                      std::to_string(most) +
                      " of another; take a number of micro-batches that the logical replicas "
                      "divide, or another schedule");
    group_counts_.insert(most);
  }
  return {};
}

result<void> pipeline::begin(const engine::step_key& step, const step_order& order) {
  const auto number = training_steps_ + 1;
  const double loss_scale = loss_scale_of(order);
  const auto done_before = under_way_.empty() ? step : under_way_.front().key;
  // All plans first: the stages of no replica begin while another waits to be told.
  std::vector<run_stage> runs;
  for (std::uint32_t replica = 0; replica < replicas_; ++replica) {
    run_stage run{step,          order.kind, 0, order.samples, number, order.learning_rate,
                  order.dry_run, loss_scale};
    run.done_before = done_before;
    if (auto planned = plan_replica(run, replica, order); !planned) return planned;
    runs.push_back(std::move(run));
  }
  if (order.kind == engine::step_kind::training && !order.dry_run) training_steps_ = number;
  remember(runs);
  std::vector<future<stage_done>> answers;
  for (std::size_t i = 0; i < stages_.size(); ++i)
    answers.push_back(
        ask_->request<stage_done>(stages_[i], runs[i / layout_.stages], usual_deadlines.step));
  auto together = all(answers);
  under_way_.push_back({step, order.kind, number, order.samples, std::chrono::steady_clock::now(),
                        std::move(answers), std::move(together)});
  open_->add(under_way_.back().answers);
  for (std::size_t i = 0; i < stages_.size(); ++i) watch_work(i, under_way_.back().of_stages[i]);
  return {};
}

void pipeline::watch_work(std::size_t place, const future<stage_done>& answer) {
  if (options_.keepers.empty()) return;
  answer.when_settled([open = open_, place, which = open_->watched(place)](const auto& how) {
    if (!how && failed_work_in(how.error())) open->stage_threw(place, which, how.error());
  });
}

bool pipeline::wait(std::chrono::milliseconds patience) const {
  const auto& answers = under_way_.front().answers;
  static_cast<void>(answers.get(patience));
  return answers.ready();
}

void pipeline::add_up(const std::vector<stage_done>& reports, step_outcome& outcome) const {
  std::vector<double> losses(logical_, 0.0);
  std::vector<std::vector<double>> metrics(logical_);
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const auto& report = reports[i];
    const auto first = i / layout_.stages * (logical_ / replicas_);
    for (std::size_t k = 0; k < report.losses.size() && first + k < losses.size(); ++k)
      losses[first + k] += report.losses[k];
    for (std::size_t k = 0; k < report.metrics.size() && first + k < metrics.size(); ++k)
      engine::add_sums(metrics[first + k], report.metrics[k]);
    if (outcome.skipped.empty()) outcome.skipped = report.skipped;
    outcome.loss_scale = report.loss_scale;
    outcome.stages.push_back(report.share);
  }
  outcome.loss = engine::tree_sum(std::move(losses), std::plus<>());
  outcome.metrics = engine::tree_sum(std::move(metrics), [](auto left, const auto& right) {
    engine::add_sums(left, right);
    return left;
  });
}

result<step_outcome> pipeline::finish() {
  const auto reports = under_way_.front().answers.get();
  const auto may_go_on_with_another_stage =
      !reports && (reports.error().code == errc::peer_lost ||
                   (!options_.keepers.empty() && failed_work_in(reports.error())));
  if (may_go_on_with_another_stage) return tl::unexpected(reports.error());
  const auto pending = std::move(under_way_.front());
  under_way_.pop_front();
  if (!reports) return tl::unexpected(reports.error());
  if (pending.kind == engine::step_kind::training) forget_before(pending.number);
  step_outcome outcome{.key = pending.key, .samples = pending.samples, .stages = {}};
  add_up(*reports, outcome);
  const auto now = std::chrono::steady_clock::now();
  outcome.seconds =
      std::chrono::duration<double>(now - std::max(pending.begun, last_finish_)).count();
  last_finish_ = now;
  return outcome;
}

result<step_outcome> pipeline::run_alone(const engine::batch& batch, step_order order) {
  const auto step = next_step();
  order.samples = batch.inputs.size(0);
  order.microbatches = feed(batch, step, order.microbatches, feeders_, order.kind, grouped());
  if (auto begun = begin(step, order); !begun) return tl::unexpected(begun.error());
  return finish();
}

result<step_outcome> pipeline::train(const engine::batch& batch, std::uint32_t microbatches,
                                     double learning_rate) {
  return run_alone(batch, {engine::step_kind::training, microbatches, 0, learning_rate});
}

result<step_outcome> pipeline::evaluate(const engine::batch& batch, std::uint32_t microbatches) {
  return run_alone(batch, {engine::step_kind::evaluation, microbatches, 0, 0});
}

result<double> pipeline::dry_run_unread(const engine::batch& batch, std::uint32_t microbatches,
                                        double loss_scale) {
  return run_alone(batch, {engine::step_kind::training, microbatches, 0, 0, true, loss_scale})
      .map([](const step_outcome& outcome) { return outcome.loss; });
}

}  // namespace troupe::actors
