#include "apps/parameter_server/driver.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <span>
#include <utility>

#include "engine/data/sampler.hpp"

namespace troupe::apps {
namespace {

using clock = std::chrono::steady_clock;

constexpr std::chrono::hours share_deadline{1};
constexpr std::chrono::milliseconds look_every{20};  // whether an evaluation is to be abandoned

at::Tensor to_tensor(std::span<const std::int64_t> indices) {
  auto tensor = at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong);
  std::memcpy(tensor.mutable_data_ptr(), indices.data(), indices.size_bytes());
  return tensor;
}

/// Part `part` of `parts` of [0, count): as even as can be.
std::pair<std::int64_t, std::int64_t> slice(std::int64_t count, std::size_t part,
                                            std::size_t parts) {
  const auto at = [&](std::size_t i) {
    return count * static_cast<std::int64_t>(i) / static_cast<std::int64_t>(parts);
  };
  return {at(part), at(part + 1)};
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

driver::driver(actors::requester& ask, std::vector<actors::worker_actor> workers,
               const engine::dataset& data, drive_plan plan, drive_events events)
    : ask_(ask),
      data_(data),
      plan_(plan),
      events_(std::move(events)),
      mail_(std::make_shared<mailbox>()),
      last_report_(clock::now()) {
  for (std::size_t i = 0; i < workers.size(); ++i) workers_.push_back({i, std::move(workers[i])});
  // Shares are equal: what does not fill a batch waits for the next epoch's order.
  const auto shares = plan.mode == cluster::server_mode::synchronous
                          ? 1
                          : static_cast<std::int64_t>(workers_.size());
  steps_per_epoch_ =
      static_cast<std::uint64_t>(data.size(engine::split::train) / plan.batch_size * shares);
  order_for(0);
}

void driver::order_for(std::uint64_t epoch) {
  if (!order_.empty() && epoch == epoch_) return;
  order_ = engine::epoch_order(data_.size(engine::split::train), plan_.seed, epoch, plan_.shuffle);
  epoch_ = epoch;
}

void driver::start(const place& worker, std::uint64_t step, bool evaluate, std::int64_t begin,
                   std::int64_t end) {
  at::Tensor samples;
  if (evaluate) {
    std::vector<std::int64_t> all;
    for (auto i = begin; i < end; ++i) all.push_back(i);
    samples = to_tensor(all);
  } else {
    samples = to_tensor(std::span(order_).subspan(static_cast<std::size_t>(begin),
                                                  static_cast<std::size_t>(end - begin)));
  }
  ++under_way_;
  ask_.request<actors::share_done>(worker.actor, actors::run_share{step, evaluate, samples},
                                   share_deadline)
      .when_settled([mail = mail_, number = worker.number](const auto& outcome) {
        mail->put({number, outcome});
      });
}

result<std::optional<driver::arrival>> driver::next() {
  auto what = mail_->take();
  --under_way_;
  if (what.outcome) {
    if (what.outcome->failure.empty()) return std::optional(std::move(what));
    return fail(what.outcome->code, what.outcome->failure);
  }
  const auto why = what.outcome.error();
  if (!is_loss(why.code) || workers_.size() == 1) return tl::unexpected(why);
  std::erase_if(workers_, [&](const auto& each) { return each.number == what.worker; });
  events_.on_note("worker-" + std::to_string(what.worker) + " is lost; going on with " +
                  std::to_string(workers_.size()) + ": " + why.text);
  return std::optional<arrival>();
}

result<void> driver::train() {
  return plan_.mode == cluster::server_mode::synchronous ? run_synchronously()
                                                         : run_asynchronously();
}

result<void> driver::finish() {
  if (plan_.evaluate && steps_done_ > 0 && !leaves()) {
    if (auto done = evaluate(steps_done_); !done) return done;
  }
  while (under_way_ > 0 && next()) {
  }
  return {};
}

result<void> driver::step_together(std::uint64_t step) {
  order_for((step - 1) / steps_per_epoch_);
  const auto begin = static_cast<std::int64_t>((step - 1) % steps_per_epoch_) * plan_.batch_size;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const auto [from, to] = slice(plan_.batch_size, i, workers_.size());
    start(workers_[i], step, false, begin + from, begin + to);
  }
  std::vector<arrival> shares;
  while (under_way_ > 0) {
    auto share = next();
    if (!share) return tl::unexpected(share.error());
    if (*share) shares.push_back(std::move(**share));
  }
  report(step, shares);
  return {};
}

result<void> driver::run_synchronously() {
  while (steps_done_ < plan_.steps && !events_.should_stop()) {
    if (auto done = step_together(steps_done_ + 1); !done) return done;
    ++steps_done_;
    if (steps_done_ == plan_.steps) break;
    if (auto done = evaluate_if_due(steps_done_); !done || abandoned_) return done;
  }
  return {};
}

result<void> driver::run_asynchronously() {
  const auto share = plan_.batch_size / static_cast<std::int64_t>(workers_.size());
  std::uint64_t begun = 0;
  const auto begin = [&](const place& worker) {
    if (begun >= plan_.steps || events_.should_stop()) return;
    order_for(begun / steps_per_epoch_);
    const auto from = static_cast<std::int64_t>(begun % steps_per_epoch_) * share;
    start(worker, ++begun, false, from, from + share);
  };
  for (const auto& each : std::vector(workers_)) begin(each);
  while (under_way_ > 0) {
    auto arrived = next();
    if (!arrived) return tl::unexpected(arrived.error());
    if (!*arrived) continue;
    const auto number = (*arrived)->worker;
    report(++steps_done_, {std::move(**arrived)});
    const auto free = std::ranges::find(workers_, number, &place::number);
    if (free != workers_.end()) begin(*free);
  }
  return {};
}

result<void> driver::evaluate_if_due(std::uint64_t step) {
  const auto period = plan_.evaluate_every > 0 ? plan_.evaluate_every : steps_per_epoch_;
  if (!plan_.evaluate || step % period != 0) return {};
  if (plan_.keep_weights) {
    // A worker that evaluates would answer only when it is done with its share.
    auto now = read_weights();
    if (!now) return tl::unexpected(now.error());
    kept_ = std::move(*now);
  }
  auto done = evaluate(step);
  if (!abandoned_) kept_.reset();
  return done;
}

bool driver::await_arrival() {
  while (!mail_->wait(look_every))
    if (leaves()) return false;
  return true;
}

result<void> driver::evaluate(std::uint64_t step) {
  const auto all = data_.size(engine::split::test);
  const auto share =
      std::max<std::int64_t>(1, plan_.batch_size / static_cast<std::int64_t>(workers_.size()));
  totals sum;
  std::int64_t begin = 0;
  const auto feed = [&](const place& worker) {
    if (begin >= all) return;
    const auto end = std::min(all, begin + share);
    start(worker, step, true, begin, end);
    begin = end;
  };
  for (const auto& each : std::vector(workers_)) feed(each);
  while (under_way_ > 0) {
    if (leaves() || !await_arrival()) return {};
    const auto arrived = next();
    if (!arrived) return tl::unexpected(arrived.error());
    if (!*arrived) continue;  // its samples do not count
    const auto& [number, outcome] = **arrived;
    sum.samples += outcome->samples;
    sum.correct += outcome->correct;
    sum.loss += outcome->loss * static_cast<double>(outcome->samples);
    const auto free = std::ranges::find(workers_, number, &place::number);
    if (free != workers_.end()) feed(*free);
  }
  last_report_ = clock::now();
  if (sum.samples == 0) return {};
  const auto count = static_cast<double>(sum.samples);
  events_.on_evaluation({step, static_cast<double>(sum.correct) / count, sum.loss / count});
  return {};
}

void driver::report(std::uint64_t step, const std::vector<arrival>& shares) {
  const auto now = clock::now();
  const double seconds = std::chrono::duration<double>(now - last_report_).count();
  last_report_ = now;
  cluster::step_report made{.step = step, .seconds = seconds, .stages = {}};
  std::int64_t samples = 0;
  for (const auto& [worker, outcome] : shares) {
    samples += outcome->samples;
    made.loss += outcome->loss * static_cast<double>(outcome->samples);
    made.stages.push_back({"worker-" + std::to_string(worker), outcome->busy_s,
                           std::max(0.0, seconds - outcome->busy_s), outcome->peak_memory_bytes});
  }
  if (samples > 0) made.loss /= static_cast<double>(samples);
  made.images_per_s = static_cast<double>(samples) / seconds;
  made.bubble = cluster::bubble_of(made.stages, seconds);
  events_.on_step(made);
}

result<std::vector<actors::named>> driver::read_weights() {
  if (kept_) return *kept_;
  const auto read =
      ask_.request<actors::weights>(workers_.front().actor, actors::read_weights{}, share_deadline)
          .get();
  if (!read) return tl::unexpected(read.error());
  return read->tensors;
}

}  // namespace troupe::apps
