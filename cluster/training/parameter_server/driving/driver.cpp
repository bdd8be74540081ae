#include "cluster/training/parameter_server/driving/driver.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <span>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/messages/data.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/transfer/pieces.hpp"
#include "cluster/training/parameter_server/driving/server_state.hpp"
#include "engine/data/sampler.hpp"

namespace troupe::cluster {
namespace {

using clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds poll_every{20};  // whether an evaluation is to be abandoned

/// Part `part` of `parts` of [0, count): as even as can be.
std::pair<std::int64_t, std::int64_t> slice(std::int64_t count, std::size_t part,
                                            std::size_t parts) {
  const auto at = [&](std::size_t i) {
    return count * static_cast<std::int64_t>(i) / static_cast<std::int64_t>(parts);
  };
  return {at(part), at(part + 1)};
}

std::string name_of(std::size_t worker) {
  return "worker-" + std::to_string(worker);
}

/// Whether a worker itself is gone, rather than reporting a failure.
bool is_loss(errc code) {
  return code == errc::peer_lost || code == errc::unknown_target;
}

}  // namespace

/// What came in, from the threads that bring it.
struct driver::mailbox {
  std::mutex mutex;
  std::condition_variable filled;
  std::deque<arrival> arrivals;

  void put(arrival what) {
    {
      const std::scoped_lock lock(mutex);
      arrivals.push_back(std::move(what));
    }
    filled.notify_one();
  }
  bool wait(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex);
    return filled.wait_for(lock, patience, [this] { return !arrivals.empty(); });
  }
  arrival take() {
    std::unique_lock lock(mutex);
    filled.wait(lock, [this] { return !arrivals.empty(); });
    auto what = std::move(arrivals.front());
    arrivals.pop_front();
    return what;
  }
};

driver::driver(actors::requester& ask, actors::coordinator_actor coordinator,
               std::vector<actors::worker_actor> workers, const engine::dataset& data,
               drive_plan plan, drive_events events)
    : ask_(ask),
      coordinator_(std::move(coordinator)),
      data_(data),
      plan_(plan),
      events_(std::move(events)),
      mail_(std::make_shared<mailbox>()),
      begun_(plan.steps_before),
      done_(plan.steps_before),
      last_report_(clock::now()) {
  for (std::size_t i = 0; i < workers.size(); ++i) workers_.push_back({i, std::move(workers[i])});
  // Shares are equal: what does not fill a batch waits for the next epoch's order.
  const auto shares = plan.mode == engine::server_mode::synchronous
                          ? 1
                          : static_cast<std::int64_t>(workers_.size());
  steps_per_epoch_ =
      static_cast<std::uint64_t>(data.size(engine::split::train) / plan.batch_size * shares);
  share_size_ = plan.batch_size / static_cast<std::int64_t>(workers_.size());
  order_for(plan_.steps_before / steps_per_epoch_);
}

void driver::order_for(std::uint64_t epoch) {
  if (!order_.empty() && epoch == epoch_) return;
  order_ = engine::epoch_order(data_.size(engine::split::train), plan_.seed, epoch, plan_.shuffle);
  epoch_ = epoch;
}

void driver::start(const place& worker, const share& what) {
  at::Tensor samples;
  if (what.evaluate) {
    std::vector<std::int64_t> all;
    for (auto i = what.begin; i < what.end; ++i) all.push_back(i);
    samples = actors::to_tensor(all);
  } else {
    order_for((what.step - 1) / steps_per_epoch_);
    samples = actors::to_tensor(std::span(order_).subspan(
        static_cast<std::size_t>(what.begin), static_cast<std::size_t>(what.end - what.begin)));
  }
  open_.emplace(worker.number, what);
  ask_.request<actors::share_done>(worker.actor,
                                   actors::run_share{what.step, what.evaluate, samples},
                                   actors::usual_deadlines.step)
      .when_settled([mail = mail_, number = worker.number](const auto& outcome) {
        mail->put({number, outcome});
      });
}

result<driver::ended_share> driver::next() {
  auto arrived = mail_->take();
  ended_share over{open_.extract(arrived.worker).mapped(), std::nullopt, arrived.worker};
  if (arrived.outcome) {
    if (!arrived.outcome->failure.empty())
      return fail(arrived.outcome->code, arrived.outcome->failure);
    if (!over.what.evaluate) ++reported_;
    over.report = std::move(*arrived.outcome);
    return over;
  }
  const auto why = arrived.outcome.error();
  if (!is_loss(why.code) || workers_.size() == 1) return tl::unexpected(why);
  leave_out(arrived.worker, why);
  if (!over.what.evaluate) lost_.push_back(over);
  return over;
}

void driver::leave_out(std::size_t worker, const error& why) {
  std::erase_if(workers_, [&](const auto& each) { return each.number == worker; });
  events_.on_note(name_of(worker) + " is lost; going on with " + std::to_string(workers_.size()) +
                  ": " + events_.why_lost(worker, why));
}

result<void> driver::train() {
  return plan_.mode == engine::server_mode::synchronous ? run_synchronously()
                                                        : run_asynchronously();
}

result<void> driver::finish() {
  if (plan_.evaluate && done_ > plan_.evaluated && !leaves()) {
    if (auto done = evaluate(done_); !done) return done;
  }
  while (!open_.empty() && next()) {
  }
  return {};
}

result<void> driver::step_together(std::uint64_t step) {
  begun_ = step;
  const auto begin = static_cast<std::int64_t>((step - 1) % steps_per_epoch_) * plan_.batch_size;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const auto [from, to] = slice(plan_.batch_size, i, workers_.size());
    start(workers_[i], {step, false, begin + from, begin + to});
  }
  std::vector<ended_share> shares;
  while (!open_.empty()) {
    auto over = next();
    if (!over) return tl::unexpected(over.error());
    if (over->report) shares.push_back(std::move(*over));
  }
  done_ = step;
  report(step, shares);
  return {};
}

result<void> driver::run_synchronously() {
  // Whoever ended the run before may have done so in this evaluation.
  if (auto done = evaluate_if_due(begun_); !done || abandoned_) return done;
  while (begun_ < plan_.steps && !events_.should_stop()) {
    if (auto done = step_together(begun_ + 1); !done) return done;
    // Before the checkpoint: a run that goes on from that does not come to the evaluation again.
    if (auto done = evaluate_if_due(begun_); !done || abandoned_) return done;
    checkpoint_is_due_ = begun_ < plan_.steps && wants_checkpoint(begun_);
    if (auto done = write_checkpoint(); !done) return done;
  }
  return {};
}

/// Until nothing is left to begin, or nobody is to begin any more.
result<void> driver::run_shares() {
  const auto feed = [&](const place& worker) {
    if (!is_idle(worker)) return;
    const bool is_over = begun_ >= plan_.steps || checkpoint_is_due_ || events_.should_stop();
    if (again_.empty() && is_over) return;
    const auto step = again_.empty() ? ++begun_ : again_.front();
    if (again_.empty())
      checkpoint_is_due_ = begun_ < plan_.steps && wants_checkpoint(begun_);
    else
      again_.pop_front();
    const auto begin = static_cast<std::int64_t>((step - 1) % steps_per_epoch_) * share_size_;
    start(worker, {step, false, begin, begin + share_size_});
  };
  for (const auto& each : std::vector(workers_)) feed(each);
  while (!open_.empty()) {
    auto over = next();
    if (!over) return tl::unexpected(over.error());
    if (over->report) report(++done_, {std::move(*over)});
    for (const auto& each : std::vector(workers_)) feed(each);
  }
  return {};
}

result<void> driver::run_asynchronously() {
  do {
    auto done = run_shares().and_then([&] { return find_missing(); });
    if (done && again_.empty()) done = write_checkpoint();
    if (!done) return done;
  } while (!again_.empty() || (begun_ < plan_.steps && !events_.should_stop()));
  return {};
}

/// If one is due.
result<void> driver::write_checkpoint() {
  if (!std::exchange(checkpoint_is_due_, false)) return {};
  return events_.on_checkpoint(begun_);
}

/// Of the shares that were lost since, which only the coordinator knows: a push that had been
/// applied is not done again.
result<void> driver::find_missing() {
  again_.clear();
  if (lost_before_ == lost_.size()) return {};
  const auto now = ask_coordinator();
  if (!now) return tl::unexpected(now.error());
  done_ = now->version.value;  // of which each is one push
  for (auto i = lost_before_; i < lost_.size() && again_.size() + done_ < begun_; ++i)
    again_.push_back(lost_[i].what.step);
  lost_before_ = lost_.size();
  return {};
}

/// What was decided, of the lost too: once the coordinator has noticed that they are.
result<actors::coordinator_report> driver::ask_coordinator() {
  return ask_
      .request<actors::coordinator_report>(coordinator_, actors::read_coordinator{workers_.size()},
                                           actors::usual_deadlines.count_workers)
      .get();
}

result<void> driver::close_accounts() {
  const auto now = ask_coordinator();
  if (!now) return tl::unexpected(now.error());
  const auto updates = "of " + std::to_string(plan_.steps) + " updates asked for " +
                       std::to_string(begun_) + " were begun and " +
                       std::to_string(now->version.value) + " applied";
  const bool all_applied = now->version.value >= begun_;
  if (lost_.empty() && all_applied) return {};
  std::string lost;
  for (const auto& each : lost_)
    lost += (lost.empty() ? "" : ", ") + ("the share of step " + std::to_string(each.what.step)) +
            " with " + name_of(each.worker);
  const auto applied = now->applied - std::min(now->applied, reported_);  // both since it was built
  events_.on_note(updates + "; lost: " + (lost.empty() ? "none" : lost) + "; of " +
                  std::to_string(lost_.size()) + " lost pushes " + std::to_string(applied) +
                  " had been applied");
  if (all_applied || events_.should_stop()) return {};
  return fail(errc::peer_lost, updates + ", so the run is not what was asked for");
}

bool driver::await_arrival() {
  while (!mail_->wait(poll_every))
    if (leaves()) return false;
  return true;
}

void driver::report(std::uint64_t step, const std::vector<ended_share>& shares) {
  const auto now = clock::now();
  const double seconds = std::chrono::duration<double>(now - last_report_).count();
  last_report_ = now;
  step_report made{.step = step, .seconds = seconds, .stages = {}};
  std::int64_t samples = 0;
  for (const auto& [what, outcome, worker] : shares) {
    samples += outcome->samples;
    made.loss += outcome->loss * static_cast<double>(outcome->samples);
    made.stages.push_back({name_of(worker), outcome->busy_s,
                           std::max(0.0, seconds - outcome->busy_s), outcome->peak_memory_bytes});
  }
  if (samples > 0) made.loss /= static_cast<double>(samples);
  made.samples_per_s = static_cast<double>(samples) / seconds;
  made.bubble = bubble_of(made.stages, seconds);
  events_.on_step(made);
}

template <class Order>
result<std::vector<engine::named_tensor>> driver::read_from(const place& worker) {
  return actors::gather_pieces([&](const actors::list_place& from) -> result<actors::tensor_piece> {
    Order order;
    order.from = from;
    auto part = ask_.request<actors::weights_piece>(worker.actor, std::move(order),
                                                    actors::usual_deadlines.update)
                    .get();
    if (!part) return tl::unexpected(part.error());
    return std::move(part->piece);
  });
}

result<std::vector<engine::named_tensor>> driver::read_weights() {
  if (kept_) return kept_->weights;
  for (;;) {
    const auto first = workers_.front();
    auto all = read_from<actors::read_weights>(first);
    if (all || !is_loss(all.error().code) || workers_.size() == 1) return all;
    // Is it the worker, or a shard that it pulls from?
    const auto alone = read_from<actors::read_buffers>(first);
    if (alone || !is_loss(alone.error().code)) return all;
    leave_out(first.number, all.error());
  }
}

result<std::vector<engine::named_tensor>> driver::read_buffers() {
  if (kept_) return kept_->buffers;
  std::vector<engine::named_tensor> all;
  const auto others = std::vector(workers_.begin() + 1, workers_.end());
  for (const auto& each : others) {
    auto own = read_from<actors::read_buffers>(each);
    if (!own && !is_loss(own.error().code)) return own;
    if (!own) {
      leave_out(each.number, own.error());
      continue;
    }
    for (auto& [name, tensor] : *own)
      all.push_back({buffer_name(each.number, name), std::move(tensor)});
  }
  return all;
}

}  // namespace troupe::cluster
