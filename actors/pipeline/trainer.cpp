#include "actors/pipeline/trainer.hpp"

#include <caf/send.hpp>
#include <chrono>
#include <span>

#include "actors/base/deadlines.hpp"
#include "actors/futures/requester.hpp"
#include "actors/messages/data.hpp"
#include "actors/pipeline/data/data_actor.hpp"
#include "actors/recovery/failed_work.hpp"
#include "engine/data/sampler.hpp"
#include "engine/model/metric.hpp"

namespace troupe::actors {
namespace {

constexpr std::size_t steps_under_way = 2;
constexpr std::chrono::milliseconds look_every{20};  // whether an evaluation is to be abandoned

/// One run: which batch comes next, and what is under way.
class run_state {
 public:
  run_state(caf::actor_system& system, pipeline& stages, const batch_source& data,
            const training& settings, const training_events& events)
      : ask_(system),
        stages_(stages),
        data_(data),
        run_(settings),
        events_(events),
        begun_(settings.steps_before),
        finished_(settings.steps_before) {}
  run_state(const run_state&) = delete;
  run_state& operator=(const run_state&) = delete;

  result<std::uint64_t> train() {
    auto steps = train_and_evaluate();
    if (!steps) tell_complete();
    return steps;
  }

 private:
  result<std::uint64_t> train_and_evaluate() {
    if (auto done = train_steps(); !done) return tl::unexpected(done.error());
    if (events_.on_trained) {
      if (auto done = events_.on_trained(finished_); !done) return tl::unexpected(done.error());
    }
    if (run_.evaluate && finished_ > evaluated() && !leaves()) {
      if (auto done = evaluate(); !done) return tl::unexpected(done.error());
    }
    // What was abandoned ends in order, before the stages do.
    while (stages_.under_way() > 0 && stages_.finish()) {
    }
    return finished_;
  }

  result<void> train_steps() {
    const auto before = run_.steps_before;
    if (before < run_.steps && evaluation_due(before)) {
      if (auto done = evaluate(); !done || abandoned_) return done;
    }
    for (std::uint64_t step = run_.steps_before + 1; step <= run_.steps; ++step) {
      if (is_between_updates() && events_.should_stop()) break;
      if (auto begun = begin(step); !begun) return begun;
      if (stages_.under_way() >= steps_under_way) {
        if (auto done = finish(); !done) return done;
      }
      if (step < run_.steps && evaluation_due(step)) {
        if (auto done = evaluate(); !done || abandoned_) return done;
      }
      if (step < run_.steps && events_.is_checkpoint_due && events_.is_checkpoint_due(step)) {
        if (auto done = events_.on_checkpoint(step); !done) return done;
      }
    }
    return drain();
  }

  /// Nothing is lost with a run that ends here.
  [[nodiscard]] bool is_between_updates() const { return begun_ % run_.update_steps == 0; }

  /// Whether nobody waits for evaluations any more.
  bool leaves() {
    return abandoned_ = abandoned_ || (is_between_updates() && events_.should_stop());
  }

  result<void> begin(std::uint64_t step) {
    const auto per_epoch =
        static_cast<std::uint64_t>(engine::batch_count(data_.train_size, run_.batch_size));
    const auto epoch = (step - 1) / per_epoch;
    if (order_.empty() || epoch != order_epoch_) {
      order_ = engine::epoch_order(data_.train_size, run_.seed, epoch, run_.shuffle);
      order_epoch_ = epoch;
    }
    const auto index = static_cast<std::int64_t>((step - 1) % per_epoch);
    auto begun = order_step(engine::batch_of(order_, run_.batch_size, index), false,
                            run_.learning_rate(step));
    if (begun) begun_ = step;
    return begun;
  }

  /// Has a batch read and its step begun, unless it is one of an evaluation that is abandoned
  /// meanwhile.
  result<void> order_step(std::span<const std::int64_t> indices, bool test, double learning_rate) {
    const auto key = stages_.next_step();
    const deliver_batch order{key, test, to_tensor(indices), run_.microbatches};
    const auto batch = through_losses([&] { return deliver(order); });
    if (!batch) return tl::unexpected(batch.error());
    if (!*batch) return {};
    const auto kind = test ? engine::step_kind::evaluation : engine::step_kind::training;
    return through_losses([&] {
      return stages_.begin(key, {kind, (*batch)->microbatches, (*batch)->samples, learning_rate});
    });
  }

  /// Of whoever reads them now: it may be asked for again where its reader was lost. Nothing: it is
  /// one of an evaluation that is abandoned.
  result<std::optional<batch_delivered>> deliver(const deliver_batch& order) {
    const auto& reader = data_.reader ? data_.reader : stages_.reader();
    const auto asked = ask_.request<batch_delivered>(reader, order, usual_deadlines.read);
    while (order.test && !asked.ready()) {
      if (leaves()) return std::optional<batch_delivered>();
      static_cast<void>(asked.get(look_every));
    }
    const auto batch = asked.get();
    if (!batch) return tl::unexpected(batch.error());
    stages_.note_fed(order, *batch);
    if (events_.on_read) events_.on_read(order, *batch);
    return std::optional<batch_delivered>(*batch);
  }

  /// A stage is lost, or its arithmetic has thrown.
  [[nodiscard]] bool may_go_on(const error& why) const {
    return events_.on_loss && (why.code == errc::peer_lost || failed_work_in(why));
  }

  /// Tries something until no stage is lost meanwhile.
  template <class Attempt>
  auto through_losses(Attempt attempt) -> decltype(attempt()) {
    auto outcome = attempt();
    while (!outcome && may_go_on(outcome.error())) {
      if (auto again = events_.on_loss(outcome.error()); !again)
        return tl::unexpected(again.error());
      outcome = attempt();
    }
    return outcome;
  }

  result<void> finish() {
    const auto outcome = through_losses([&] { return stages_.finish(); });
    if (!outcome) return tl::unexpected(outcome.error());
    events_.on_step(++finished_, *outcome);
    return {};
  }

  /// Where the steps end with an error: whoever goes on behind steps that all stages have done does
  /// not do them again.
  void tell_complete() {
    while (finished_ < begun_ && stages_.under_way() > 0 && stages_.wait({})) {
      const auto outcome = stages_.finish();
      if (!outcome) return;
      events_.on_step(++finished_, *outcome);
    }
  }

  result<void> drain() {
    while (stages_.under_way() > 0) {
      if (auto done = finish(); !done) return done;
    }
    return {};
  }

  [[nodiscard]] std::uint64_t evaluated() const {
    return run_.evaluated.value_or(run_.steps_before);
  }

  [[nodiscard]] bool evaluation_due(std::uint64_t step) const {
    if (!run_.evaluate || step <= evaluated()) return false;
    const auto period =
        run_.evaluate_every > 0
            ? run_.evaluate_every
            : static_cast<std::uint64_t>(engine::batch_count(data_.train_size, run_.batch_size));
    return step % period == 0;
  }

  result<void> evaluate() {
    if (data_.test_size == 0) return {};
    if (auto drained = drain(); !drained) return drained;
    const auto order = engine::epoch_order(data_.test_size, 0, 0, false);
    const auto batches = engine::batch_count(data_.test_size, run_.batch_size);
    totals_ = {};
    for (std::int64_t i = 0; i < batches && !leaves(); ++i) {
      if (auto written = write_if_asked(); !written) return written;
      if (auto begun = order_step(engine::batch_of(order, run_.batch_size, i), true, 0); !begun)
        return begun;
      const bool last = i + 1 == batches;
      while (!abandoned_ && stages_.under_way() >= (last ? 1 : steps_under_way)) {
        if (auto counted = count(); !counted) return counted;
      }
    }
    if (abandoned_) return {};
    const auto labels = static_cast<double>(totals_.samples * run_.labels);
    for (auto& each : totals_.metrics) each /= labels;
    events_.on_evaluation({finished_, totals_.metrics});
    return {};
  }

  /// Whoever wants it may not wait for the evaluation's end.
  result<void> write_if_asked() {
    const bool is_asked = finished_ < run_.steps && events_.is_checkpoint_asked &&
                          events_.is_checkpoint_asked(finished_);
    return is_asked ? events_.on_checkpoint(finished_) : result<void>();
  }

  result<void> count() {
    const auto outcome = through_losses([&]() -> result<step_outcome> {
      while (!stages_.wait(look_every))
        if (leaves()) return step_outcome{};
      return stages_.finish();
    });
    if (!outcome) return tl::unexpected(outcome.error());
    if (abandoned_) return {};
    totals_.samples += outcome->samples;
    engine::add_sums(totals_.metrics, outcome->metrics);
    return {};
  }

  struct evaluation_totals {
    std::int64_t samples = 0;
    std::vector<double> metrics = {};  // summed over labels
  };

  requester ask_;
  pipeline& stages_;
  const batch_source& data_;
  const training& run_;
  const training_events& events_;
  std::vector<std::int64_t> order_;  // of the current pass over the data
  std::uint64_t order_epoch_ = 0;
  std::uint64_t begun_;  // training steps, as below
  std::uint64_t finished_;
  bool abandoned_ = false;  // an evaluation, whose steps may be under way
  evaluation_totals totals_;
};

}  // namespace

result<std::uint64_t> train(caf::actor_system& system, pipeline& stages, const batch_source& data,
                            const training& run, const training_events& events) {
  return run_state(system, stages, data, run, events).train();
}

result<std::uint64_t> train(caf::actor_system& system, pipeline& stages,
                            const std::shared_ptr<const engine::dataset>& data, const training& run,
                            const training_events& events) {
  const batch_source here{spawn_data(system, data, stages.feeders(), stages.grouped()),
                          data->size(engine::split::train), data->size(engine::split::test)};
  auto steps = train(system, stages, here, run, events);
  caf::anon_send_exit(here.reader, caf::exit_reason::user_shutdown);
  return steps;
}

}  // namespace troupe::actors
