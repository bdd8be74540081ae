#include "actors/pipeline/pipeline.hpp"

#include <algorithm>
#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>
#include <optional>
#include <utility>

#include "actors/errors.hpp"
#include "actors/pipeline/feed.hpp"
#include "actors/pipeline/judge.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_checker.hpp"
#include "engine/schedule/plan_text.hpp"
#include "engine/stage/model.hpp"

namespace troupe::actors {

/// From a pipeline to its announcer: one order a stage, and where the answers go.
struct announcement {
  std::vector<stage_actor> stages;
  std::vector<run> orders;
  std::shared_ptr<std::promise<result<std::vector<run_done>>>> answer;
};

}  // namespace troupe::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::announcement)

namespace troupe::actors {
namespace {

using std::chrono::steady_clock;

/// A stage that has not finished its step by then is given up on.
constexpr std::chrono::minutes step_deadline{60};
constexpr std::chrono::minutes transfer_deadline{10};

/// The stage of the layer that has a parameter of this name; nullopt: no layer has.
std::optional<std::size_t> stage_of(
    const std::string& parameter, const engine::model& layers,
    const std::vector<std::pair<std::size_t, std::size_t>>& ranges) {
  for (std::size_t s = 0; s < ranges.size(); ++s)
    for (auto i = ranges[s].first; i < ranges[s].second; ++i)
      for (const auto& each : layers.at(i)->parameters())
        if (each.name == parameter) return s;
  return std::nullopt;
}

/// Sends one request and waits for its answer.
template <class Answer, class Request>
result<Answer> ask(caf::scoped_actor& self, const stage_actor& stage, Request request) {
  result<Answer> outcome = fail(errc::handler_failed, "no answer");
  self->request(stage, transfer_deadline, std::move(request))
      .receive([&](Answer& answer) { outcome = std::move(answer); },
               [&](const caf::error& why) { outcome = tl::unexpected(from_caf(why)); });
  return outcome;
}

/// The answers to one announcement, as they come in.
struct collected_answers {
  std::vector<run_done> reports;
  std::size_t missing = 0;
  bool settled = false;
};

void announce(caf::event_based_actor* self, const announcement& step) {
  auto answers = std::make_shared<collected_answers>();
  answers->reports.resize(step.stages.size());
  answers->missing = step.stages.size();
  for (std::size_t i = 0; i < step.stages.size(); ++i) {
    self->request(step.stages[i], step_deadline, step.orders[i])
        .then(
            [answers, i, to = step.answer](const run_done& report) {
              answers->reports[i] = report;
              if (--answers->missing == 0) to->set_value(std::move(answers->reports));
            },
            [answers, to = step.answer](const caf::error& why) {
              if (!std::exchange(answers->settled, true))
                to->set_value(tl::unexpected(from_caf(why)));
            });
  }
}

caf::behavior announcer(caf::event_based_actor* self) {
  return {[self](const announcement& step) { announce(self, step); }};
}

}  // namespace

std::vector<stage_tie> ties_between(
    const engine::model& layers, const std::vector<std::pair<std::size_t, std::size_t>>& ranges) {
  std::vector<stage_tie> between;
  for (const auto& tie : engine::ties(layers)) {
    const auto one = stage_of(tie.one, layers, ranges);
    const auto other = stage_of(tie.other, layers, ranges);
    if (one && other && *one != *other) between.push_back({*one, tie.one, *other, tie.other});
  }
  return between;
}

pipeline::pipeline(caf::actor_system& system, std::vector<stage_actor> stages, std::string schedule)
    : self_(std::make_unique<caf::scoped_actor>(system)),
      announcer_(system.spawn(announcer)),
      stages_(std::move(stages)),
      schedule_(std::move(schedule)),
      last_finish_(steady_clock::now()) {}

pipeline::~pipeline() {
  if (announcer_) caf::anon_send_exit(announcer_, caf::exit_reason::user_shutdown);
  if (feeder_) caf::anon_send_exit(feeder_, caf::exit_reason::user_shutdown);
  if (judge_) caf::anon_send_exit(judge_, caf::exit_reason::user_shutdown);
}

result<pipeline> pipeline::compose(caf::actor_system& system, std::vector<stage_actor> stages,
                                   const std::string& schedule, std::uint32_t credits) {
  return compose(system, std::move(stages), schedule, pipeline_options{.credits = credits});
}

result<pipeline> pipeline::compose(caf::actor_system& system, std::vector<stage_actor> stages,
                                   const std::string& schedule, const pipeline_options& options) {
  const auto credits = options.credits;
  pipeline made(system, std::move(stages), schedule);
  if (auto plan = made.plan_for({}); !plan) return tl::unexpected(plan.error());
  if (credits < 1 || credits > engine::max_credits)
    return fail(errc::bad_config, "credits = " + std::to_string(credits) +
                                      " is out of range: 1 to " +
                                      std::to_string(engine::max_credits));
  const auto& all = made.stages_;
  made.feeder_ = spawn_feeder(system, all.front(), all.back(), credits);
  if (options.skip_bad_steps) made.judge_ = spawn_judge(system, all.size());
  if (auto connected = made.connect(options); !connected) return tl::unexpected(connected.error());
  return made;
}

result<void> pipeline::connect(const pipeline_options& options) {
  const auto feeder = caf::actor_cast<caf::strong_actor_ptr>(feeder_);
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const bool first = i == 0;
    const bool last = i + 1 == stages_.size();
    connect_stage around{.previous = {}, .next = {}, .feeder = {}, .credits = options.credits};
    around.stages_behind = static_cast<std::uint32_t>(stages_.size() - i - 1);
    if (judge_) around.judge = caf::actor_cast<caf::strong_actor_ptr>(judge_);
    for (const auto& tie : options.ties) {
      const auto end = [&](const std::string& own, std::size_t other, const std::string& name) {
        around.ties.push_back(
            {own, caf::actor_cast<caf::strong_actor_ptr>(stages_.at(other)), name});
      };
      if (tie.stage == i) end(tie.parameter, tie.other_stage, tie.other_parameter);
      if (tie.other_stage == i) end(tie.other_parameter, tie.stage, tie.parameter);
    }
    if (!first) around.previous = caf::actor_cast<caf::strong_actor_ptr>(stages_[i - 1]);
    if (!last) around.next = caf::actor_cast<caf::strong_actor_ptr>(stages_[i + 1]);
    if (first || last) around.feeder = feeder;
    auto connected = ask<done>(*self_, stages_[i], std::move(around));
    if (!connected) return tl::unexpected(connected.error());
  }
  return {};
}

result<engine::plan> pipeline::plan_for(const step_order& order) const {
  const auto stages = static_cast<std::uint32_t>(stages_.size());
  if (order.kind == engine::step_kind::evaluation)
    return engine::forward_only(stages, order.microbatches);
  auto plan = engine::make_plan(schedule_, stages, order.microbatches);
  if (plan) {
    if (auto sound = engine::check(*plan, order.kind); !sound) return tl::unexpected(sound.error());
  }
  return plan;
}

engine::step_key pipeline::next_step() {
  return {epoch_id{0}, step_id{++last_step_}};
}

result<void> pipeline::begin(const engine::step_key& step, const step_order& order) {
  auto plan = plan_for(order);
  if (!plan) return tl::unexpected(plan.error());
  const auto update = updates_ + 1;
  if (order.kind == engine::step_kind::training && !order.rehearsal) updates_ = update;
  announcement message{
      stages_, {}, std::make_shared<std::promise<result<std::vector<run_done>>>>()};
  for (const auto& stage : plan->stages) {
    const engine::plan own{plan->schedule, plan->microbatches, {stage}};
    message.orders.push_back({step, order.kind, engine::to_text(own), order.images, update,
                              order.learning_rate, order.rehearsal});
  }
  under_way_.push_back({step, order.images, steady_clock::now(), message.answer->get_future()});
  caf::anon_send(announcer_, std::move(message));
  return {};
}

result<step_outcome> pipeline::finish() {
  auto pending = std::move(under_way_.front());
  under_way_.pop_front();
  const auto reports = pending.answers.get();
  if (!reports) return tl::unexpected(reports.error());
  step_outcome outcome{.key = pending.key, .images = pending.images, .stages = {}};
  for (const auto& report : *reports) {
    outcome.loss += report.loss;
    outcome.correct += report.correct;
    if (outcome.skipped.empty()) outcome.skipped = report.skipped;
    outcome.stages.push_back({report.busy_s, report.peak_memory_bytes});
  }
  const auto now = steady_clock::now();
  outcome.seconds =
      std::chrono::duration<double>(now - std::max(pending.begun, last_finish_)).count();
  last_finish_ = now;
  return outcome;
}

result<step_outcome> pipeline::run_alone(const engine::batch& batch, step_order order) {
  const auto step = next_step();
  order.images = batch.images.size(0);
  order.microbatches = feed(batch, step, order.microbatches, feeder_);
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

result<engine::step_result> pipeline::rehearse(const engine::batch& batch,
                                               std::uint32_t microbatches) {
  const auto outcome = run_alone(batch, {engine::step_kind::training, microbatches, 0, 0, true});
  if (!outcome) return tl::unexpected(outcome.error());
  engine::step_result whole{.loss = outcome->loss};
  for (const auto& stage : stages_) {
    auto part = ask<rehearsed>(*self_, stage, read_rehearsal{});
    if (!part) return tl::unexpected(part.error());
    for (auto& [name, tensor] : part->gradients) whole.gradients.push_back({name, tensor});
    for (auto& [name, tensor] : part->buffers) whole.buffers.push_back({name, tensor});
  }
  return whole;
}

result<std::vector<engine::named_tensor>> pipeline::read_weights() {
  std::vector<engine::named_tensor> all;
  for (const auto& stage : stages_) {
    auto part = ask<weights>(*self_, stage, actors::read_weights{});
    if (!part) return tl::unexpected(part.error());
    for (auto& [name, tensor] : part->tensors) all.push_back({name, tensor});
  }
  return all;
}

result<void> pipeline::load_weights(std::size_t stage,
                                    const std::vector<engine::named_tensor>& tensors) {
  actors::load_weights message;
  for (const auto& [name, tensor] : tensors) message.tensors.push_back({name, tensor});
  auto loaded = ask<done>(*self_, stages_.at(stage), std::move(message));
  if (!loaded) return tl::unexpected(loaded.error());
  return {};
}

}  // namespace troupe::actors
