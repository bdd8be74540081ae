#include <algorithm>
#include <iterator>
#include <utility>

#include "cluster/training/evaluated.hpp"
#include "cluster/training/parameter_server/driving/driver.hpp"

/// How workers evaluate the model that they train.
namespace troupe::cluster {

result<void> driver::evaluate_if_due(std::uint64_t step) {
  const auto period = plan_.evaluate_every > 0 ? plan_.evaluate_every : steps_per_epoch_;
  const bool is_last = step == plan_.steps;  // which `finish` evaluates
  if (!plan_.evaluate || is_last || step % period != 0 || step <= plan_.evaluated) return {};
  if (plan_.keep_weights) {
    // A worker that evaluates would answer only when it is done with its share.
    auto weights = read_weights();
    if (!weights) return tl::unexpected(weights.error());
    auto buffers = read_buffers();
    if (!buffers) return tl::unexpected(buffers.error());
    kept_ = {std::move(*weights), std::move(*buffers)};
  }
  auto done = evaluate(step);
  if (!abandoned_) kept_.reset();
  return done;
}

driver::test_shares driver::cut_test_data(std::uint64_t step) const {
  const auto all = data_.size(engine::split::test);
  const auto most =
      std::max<std::int64_t>(1, plan_.batch_size / static_cast<std::int64_t>(workers_.size()));
  test_shares shares;
  for (std::int64_t begin = 0; begin < all; begin += most) {
    const auto turn = static_cast<std::size_t>(begin / most) % workers_.size();
    shares[workers_[turn].number].push_back({step, true, begin, std::min(all, begin + most)});
  }
  return shares;
}

result<void> driver::evaluate(std::uint64_t step) {
  auto left = cut_test_data(step);
  std::deque<share> again;  // of lost workers
  const auto feed = [&](const place& worker) {
    auto& from = left[worker.number].empty() ? again : left[worker.number];
    if (!is_idle(worker) || from.empty()) return;
    start(worker, from.front());
    from.pop_front();
  };
  std::map<std::int64_t, actors::share_done> over_by_begin;
  for (const auto& each : std::vector(workers_)) feed(each);
  while (!open_.empty()) {
    if (leaves() || !await_arrival()) return {};
    auto over = next();
    if (!over) return tl::unexpected(over.error());
    if (over->report) {
      over_by_begin.emplace(over->what.begin, std::move(*over->report));
    } else {
      again.push_back(over->what);
      std::ranges::move(left.extract(over->worker).mapped(), std::back_inserter(again));
    }
    for (const auto& each : std::vector(workers_)) feed(each);
  }
  last_report_ = std::chrono::steady_clock::now();
  tell_evaluation(step, over_by_begin);
  return {};
}

void driver::tell_evaluation(std::uint64_t step,
                             const std::map<std::int64_t, actors::share_done>& over) {
  std::int64_t samples = 0;
  std::vector<double> sums;
  for (const auto& [begin, done] : over) {
    samples += done.samples;
    engine::add_sums(sums, done.metrics);
  }
  if (samples == 0) return;
  for (auto& each : sums) each /= static_cast<double>(samples);
  events_.on_evaluation(evaluated(step, plan_.metrics, sums));
}

}  // namespace troupe::cluster
