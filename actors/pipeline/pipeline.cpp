#include "actors/pipeline/pipeline.hpp"

#include <algorithm>
#include <caf/send.hpp>
#include <cmath>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/base/errors.hpp"
#include "actors/futures/combine.hpp"
#include "actors/futures/requester.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/data.hpp"
#include "actors/messages/step_end.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/pipeline/feed.hpp"
#include "actors/pipeline/step_coordinator.hpp"
#include "actors/transfer/pieces.hpp"
#include "engine/model/model.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_checker.hpp"
#include "engine/state/scaler_state.hpp"
#include "optimizers/options.hpp"

namespace troupe::actors {

namespace {

using std::chrono::steady_clock;

constexpr auto all_tensors = std::numeric_limits<std::uint64_t>::max();

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
                                    const std::vector<engine::layer_range>& ranges) {
  for (std::size_t s = 0; s < ranges.size(); ++s)
    for (auto i = ranges[s].first; i < ranges[s].last; ++i)
      for (const auto& each : layers.at(i)->parameters())
        if (each.name == parameter) return s;
  return std::nullopt;
}

}  // namespace

/// What the stages answer to the steps under way. The feeder ends when a batch cannot be sent:
/// nothing that waits for it will come about. Any thread.
class pipeline::open_steps {
 public:
  void add(const step_answers& step) {
    const std::scoped_lock lock(mutex_);
    if (fed_up_) return static_cast<void>(step.state()->settle_error(*fed_up_));
    std::erase_if(open_, [](const auto& each) { return each.ready(); });
    open_.push_back(step);
  }

  void feeder_ended(const error& why) {
    const std::scoped_lock lock(mutex_);
    fed_up_ = why;
    for (const auto& each : open_) each.state()->settle_error(why);
  }

 private:
  std::mutex mutex_;
  std::vector<step_answers> open_;
  std::optional<error> fed_up_;
};

std::vector<stage_tie> ties_between(const engine::model& layers,
                                    const std::vector<engine::layer_range>& ranges) {
  std::vector<stage_tie> between;
  for (const auto& tie : engine::ties(layers)) {
    const auto one = stage_of(tie.one, layers, ranges);
    const auto other = stage_of(tie.other, layers, ranges);
    if (one && other && *one != *other) between.push_back({*one, tie.one, *other, tie.other});
  }
  return between;
}

pipeline::pipeline(caf::actor_system& system, std::vector<stage_actor> stages,
                   engine::schedule_choice schedule, const engine::model_layout& layout)
    : ask_(std::make_unique<requester>(system)),
      open_(std::make_shared<open_steps>()),
      stages_(std::move(stages)),
      layout_(layout),
      plans_(planner_of(std::move(schedule), layout)),
      last_finish_(steady_clock::now()) {}

pipeline::pipeline(pipeline&&) = default;

pipeline::~pipeline() {
  if (feeder_ && owns_feeder_) caf::anon_send_exit(feeder_, caf::exit_reason::user_shutdown);
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
  const auto credits = options.credits;
  const auto layout = engine::layout_of(schedule, static_cast<std::uint32_t>(stages.size()));
  if (!layout) return tl::unexpected(layout.error());
  if (credits < 1 || credits > engine::max_credits)
    return fail(errc::bad_config, "credits = " + std::to_string(credits) +
                                      " is out of range: 1 to " +
                                      std::to_string(engine::max_credits));
  const double loss_scale = options.scaler ? options.scaler->scale : options.loss_scale;
  if (!(loss_scale > 0) || !std::isfinite(loss_scale))
    return fail(errc::bad_config,
                "loss_scale = " + optimizers::to_text(loss_scale) + " is out of range: above 0");
  pipeline made(system, std::move(stages), schedule, *layout);
  if (auto fed = made.choose_feeder(system, options); !fed) return tl::unexpected(fed.error());
  made.pieces_ = options.pieces;
  made.has_scaler_ = options.scaler.has_value();
  made.loss_scale_ = loss_scale;
  made.steps_before_ = made.training_steps_ = options.steps_before;
  if (options.skip_bad_steps || options.scaler || options.clip_norm > 0)
    made.coordinator_ = spawn_step_coordinator(
        system, {layout->stages, options.skip_bad_steps, options.clip_norm, options.scaler});
  if (auto connected = made.connect(options); !connected) return tl::unexpected(connected.error());
  return made;
}

neighbour pipeline::slice_at(std::uint32_t virtual_stage) const {
  const auto [stage, chunk] = layout_.slice_at(virtual_stage);
  return {caf::actor_cast<caf::strong_actor_ptr>(stages_[stage]), chunk};
}

std::vector<tied_parameter> pipeline::ties_of(std::size_t stage,
                                              const std::vector<stage_tie>& all) const {
  std::vector<tied_parameter> mine;
  const auto end = [&](const std::string& own, std::size_t other, const std::string& name) {
    mine.push_back({own, caf::actor_cast<caf::strong_actor_ptr>(stages_.at(other)), name});
  };
  for (const auto& tie : all) {
    if (tie.stage == stage) end(tie.parameter, tie.other_stage, tie.other_parameter);
    if (tie.other_stage == stage) end(tie.other_parameter, tie.stage, tie.parameter);
  }
  return mine;
}

template <class Answer, class Actor, class Request>
result<Answer> pipeline::ask(const Actor& whom, Request request) {
  return ask_->request<Answer>(whom, std::move(request), usual_deadlines.transfer).get();
}

result<void> pipeline::choose_feeder(caf::actor_system& system, const pipeline_options& options) {
  const auto [stage, chunk] = layout_.slice_at(layout_.virtual_stages() - 1);
  if (options.data) {
    const auto connected = ask<data_connected>(
        options.data, connect_data{slice_at(0).stage, slice_at(layout_.virtual_stages() - 1).stage,
                                   chunk, options.credits});
    if (!connected) return tl::unexpected(connected.error());
    feeder_ = caf::actor_cast<feeder_actor>(connected->feeder);
  } else {
    feeder_ = spawn_feeder(system, stages_.front(), stages_[stage], chunk, options.credits);
    owns_feeder_ = true;
  }
  caf::actor_cast<caf::abstract_actor*>(feeder_)->attach_functor(
      [open = open_](const caf::error& reason) {
        if (reason) open->feeder_ended(from_caf(reason));
      });
  return {};
}

result<void> pipeline::connect(const pipeline_options& options) {
  const std::uint32_t virtual_stages = layout_.virtual_stages();
  for (std::uint32_t s = 0; s < layout_.stages; ++s) {
    connect_stage around{.before = {},
                         .after = {},
                         .feeder = {},
                         .credits = options.credits,
                         .place = {s},
                         .ties = ties_of(s, options.ties),
                         .may_leave_out = options.skip_bad_steps || options.scaler,
                         .clips_norm = options.clip_norm > 0};
    if (coordinator_) around.coordinator = caf::actor_cast<caf::strong_actor_ptr>(coordinator_);
    for (std::uint32_t chunk = 0; chunk < layout_.chunks; ++chunk) {
      const std::uint32_t at = layout_.virtual_stage_of({s, chunk});
      const bool first = at == 0, last = at + 1 == virtual_stages;
      around.before.push_back(first ? neighbour{} : slice_at(at - 1));
      around.after.push_back(last ? neighbour{} : slice_at(at + 1));
      if (first || last) around.feeder = caf::actor_cast<caf::strong_actor_ptr>(feeder_);
    }
    const auto connected = ask<acknowledged>(stages_[s], std::move(around));
    if (!connected) return tl::unexpected(connected.error());
  }
  return {};
}

engine::step_key pipeline::next_step() {
  return {epoch_id{0}, step_id{++last_step_}};
}

// Steps are begun before the decision on the one before, which says what a scaler makes of it.
double pipeline::loss_scale_of(const step_order& order) const {
  if (order.dry_run) return order.loss_scale;
  return has_scaler_ && training_steps_ > steps_before_ ? 0 : loss_scale_;
}

result<void> pipeline::announce(std::uint32_t number, engine::step_kind kind, engine::plan plan) {
  std::vector<future<acknowledged>> answers;
  for (std::size_t i = 0; i < stages_.size(); ++i)
    answers.push_back(ask_->request<acknowledged>(
        stages_[i],
        announce_plan{number, kind, plan.microbatches, plan.chunks, std::move(plan.stages[i])},
        usual_deadlines.transfer));
  const auto known = all(std::move(answers)).get();
  if (!known) return tl::unexpected(known.error());
  return {};
}

result<void> pipeline::begin(const engine::step_key& step, const step_order& order) {
  auto plan = plans_.plan_for(order.kind, order.microbatches);
  if (!plan) return tl::unexpected(plan.error());
  if (plan->fresh)
    if (auto known = announce(plan->number, order.kind, *std::move(plan->fresh)); !known)
      return known;
  const auto number = training_steps_ + 1;
  const double loss_scale = loss_scale_of(order);
  if (order.kind == engine::step_kind::training && !order.dry_run) training_steps_ = number;
  std::vector<future<stage_done>> answers;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    answers.push_back(
        ask_->request<stage_done>(stages_[i],
                                  run_stage{step, order.kind, plan->number, order.samples, number,
                                            order.learning_rate, order.dry_run, loss_scale},
                                  usual_deadlines.step));
  }
  under_way_.push_back({step, order.samples, steady_clock::now(), all(std::move(answers))});
  open_->add(under_way_.back().answers);
  return {};
}

bool pipeline::wait(std::chrono::milliseconds patience) const {
  const auto& answers = under_way_.front().answers;
  static_cast<void>(answers.get(patience));
  return answers.ready();
}

result<step_outcome> pipeline::finish() {
  auto pending = std::move(under_way_.front());
  under_way_.pop_front();
  const auto reports = pending.answers.get();
  if (!reports) return tl::unexpected(reports.error());
  step_outcome outcome{.key = pending.key, .samples = pending.samples, .stages = {}};
  for (const auto& report : *reports) {
    outcome.loss += report.loss;
    outcome.correct += report.correct;
    if (outcome.skipped.empty()) outcome.skipped = report.skipped;
    outcome.loss_scale = report.loss_scale;
    outcome.stages.push_back({report.busy_s, report.peak_memory_bytes, report.peak_context_bytes});
  }
  const auto now = steady_clock::now();
  outcome.seconds =
      std::chrono::duration<double>(now - std::max(pending.begun, last_finish_)).count();
  last_finish_ = now;
  return outcome;
}

result<step_outcome> pipeline::run_alone(const engine::batch& batch, step_order order) {
  const auto step = next_step();
  order.samples = batch.inputs.size(0);
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

result<engine::step_result> pipeline::dry_run(const engine::batch& batch,
                                              std::uint32_t microbatches, double loss_scale) {
  const auto loss = dry_run_unread(batch, microbatches, loss_scale);
  if (!loss) return tl::unexpected(loss.error());
  engine::step_result whole{.loss = *loss};
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    auto part = read<dry_run_part>(stage, read_dry_run{false}, whole.gradients).and_then([&] {
      return read<dry_run_part>(stage, read_dry_run{true}, whole.buffers);
    });
    if (!part) return tl::unexpected(part.error());
  }
  return whole;
}

result<double> pipeline::dry_run_unread(const engine::batch& batch, std::uint32_t microbatches,
                                        double loss_scale) {
  return run_alone(batch, {engine::step_kind::training, microbatches, 0, 0, true, loss_scale})
      .map([](const step_outcome& outcome) { return outcome.loss; });
}

result<at::Tensor> pipeline::predict(const at::Tensor& inputs) {
  const auto outcome =
      run_alone({inputs, {}}, {.kind = engine::step_kind::evaluation, .microbatches = 1});
  if (!outcome) return tl::unexpected(outcome.error());
  std::vector<engine::named_tensor> outputs;
  const auto last = layout_.slice_at(layout_.virtual_stages() - 1).stage;
  if (auto part = read<outputs_piece>(last, read_outputs{}, outputs); !part)
    return tl::unexpected(part.error());
  return outputs.front().tensor;
}

result<void> pipeline::visit_weights(std::uint32_t virtual_stage, const part_taker& take) {
  const auto [stage, chunk] = layout_.slice_at(virtual_stage);
  return visit<weights_piece>(stage, actors::read_weights{chunk}, 0, all_tensors, take);
}

result<void> pipeline::visit_state(const part_taker& take) {
  for (std::size_t stage = 0; stage < stages_.size(); ++stage)
    if (auto done = visit<kept_state>(stage, actors::read_state{}, 0, all_tensors, take); !done)
      return done;
  if (!has_scaler_) return {};
  return read_scaler().and_then([&](const engine::named_tensor& kept) {
    return take({kept.name, kept.tensor});
  });
}

result<std::vector<engine::tensor_form>> pipeline::list_state() {
  std::vector<engine::tensor_form> forms;
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    actors::read_state request;
    request.forms = true;
    auto listed = visit<kept_state>(
        stage, request, 0, all_tensors, [&](const tensor_part& part) -> result<void> {
          if (!part.range)
            return fail(errc::bad_frame, "a form of '" + part.name + "' came without its shape");
          forms.push_back({part.name, part.tensor.scalar_type(), part.range->shape});
          return {};
        });
    if (!listed) return tl::unexpected(listed.error());
  }
  if (!has_scaler_) return forms;
  const auto scaler = read_scaler();
  if (!scaler) return tl::unexpected(scaler.error());
  const auto& [name, tensor] = *scaler;
  forms.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  return forms;
}

result<engine::named_tensor> pipeline::read_scaler() {
  const auto scaler = ask<loss_scale_now>(coordinator_, read_loss_scale{});
  if (!scaler) return tl::unexpected(scaler.error());
  return engine::named_tensor{
      std::string(engine::scaler_name),
      engine::to_tensor({.scale = scaler->scale, .applied = scaler->applied})};
}

result<void> pipeline::visit_dry_run(std::size_t stage, bool buffers, std::uint64_t first,
                                     std::uint64_t count, const part_taker& take) {
  return visit<dry_run_part>(stage, read_dry_run{buffers}, first, count, take);
}

result<void> pipeline::load_weights(std::uint32_t virtual_stage, const piece_source& next) {
  const auto [stage, chunk] = layout_.slice_at(virtual_stage);
  return give(stage, actors::load_weights{chunk, {}, /*partly=*/true}, next);
}

result<void> pipeline::load_state(std::size_t stage, const piece_source& next) {
  return give(stage, actors::load_state{}, next);
}

result<bool> pipeline::load_file(std::size_t stage, const actors::load_file& which) {
  return ask<file_loaded>(stages_.at(stage), which).map([](const file_loaded& how) {
    return how.seen;
  });
}

result<std::vector<engine::named_tensor>> pipeline::read_weights() {
  std::vector<engine::named_tensor> all;
  for (std::uint32_t at = 0; at < layout_.virtual_stages(); ++at) {
    const auto [stage, chunk] = layout_.slice_at(at);
    if (auto part = read<weights_piece>(stage, actors::read_weights{chunk}, all); !part)
      return tl::unexpected(part.error());
  }
  return all;
}

result<std::vector<engine::named_tensor>> pipeline::read_state() {
  std::vector<engine::named_tensor> all;
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    if (auto part = read<kept_state>(stage, actors::read_state{}, all); !part)
      return tl::unexpected(part.error());
  }
  if (!has_scaler_) return all;
  auto scaler = read_scaler();
  if (!scaler) return tl::unexpected(scaler.error());
  all.push_back(std::move(*scaler));
  return all;
}

result<void> pipeline::load_weights(std::uint32_t virtual_stage,
                                    const std::vector<engine::named_tensor>& tensors) {
  const auto [stage, chunk] = layout_.slice_at(virtual_stage);
  return load(stage, actors::load_weights{chunk, {}}, tensors);
}

result<void> pipeline::load_state(std::size_t stage,
                                  const std::vector<engine::named_tensor>& tensors) {
  return load(stage, actors::load_state{}, tensors);
}

template <class Answer, class Request>
result<void> pipeline::read(std::size_t stage, Request request,
                            std::vector<engine::named_tensor>& into) {
  auto all = gather_pieces([&](const list_place& from) -> result<tensor_piece> {
    request.from = from;
    request.most = pieces_;
    auto part = ask<Answer>(stages_.at(stage), request);
    if (!part) return tl::unexpected(part.error());
    return std::move(part->piece);
  });
  if (!all) return tl::unexpected(all.error());
  std::ranges::move(*all, std::back_inserter(into));
  return {};
}

template <class Answer, class Request>
result<void> pipeline::visit(std::size_t stage, Request request, std::uint64_t first,
                             std::uint64_t count, const part_taker& take) {
  const auto piece_at = [&](const list_place& from) -> result<tensor_piece> {
    request.from = from;
    request.most = pieces_;
    auto part = ask<Answer>(stages_.at(stage), request);
    if (!part) return tl::unexpected(part.error());
    return std::move(part->piece);
  };
  return visit_pieces(first, count, piece_at, take);
}

template <class Request>
result<void> pipeline::give(std::size_t stage, Request message, const piece_source& next) {
  while (true) {
    auto piece = next();
    if (!piece) return tl::unexpected(piece.error());
    const bool last = piece->last;
    message.piece = std::move(*piece);
    auto taken = ask<acknowledged>(stages_.at(stage), message);
    if (!taken) return tl::unexpected(taken.error());
    if (last) return {};
  }
}

template <class Request>
result<void> pipeline::load(std::size_t stage, Request message,
                            const std::vector<engine::named_tensor>& tensors) {
  return give_pieces(tensors, pieces_, [&](tensor_piece piece) -> result<void> {
    message.piece = std::move(piece);
    auto loaded = ask<acknowledged>(stages_.at(stage), message);
    if (!loaded) return tl::unexpected(loaded.error());
    return {};
  });
}

}  // namespace troupe::actors
