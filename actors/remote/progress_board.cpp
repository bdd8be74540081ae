#include "actors/remote/progress_board.hpp"

#include <utility>

namespace troupe::actors {
namespace {

/// Each loss, as heartbeats may go astray.
constexpr int times_told = 20;

progress_report report_of(const std::string& thread, const engine::activity& what,
                          const engine::activity::snapshot& seen) {
  progress_report report{.thread = thread, .count = 2 * seen.count};
  if (!seen.doing && !seen.has_work) return report;
  if (!seen.doing) ++report.count;  // no time in which it had none counts
  const auto item = seen.doing.value_or(engine::work_item{.kind = engine::work_kind::start});
  report.kind = item.kind;
  report.what = engine::to_string(item);
  if (seen.at) report.place = what.name_of(*seen.at);
  report.usual_s = seen.doing ? seen.median_s : 0;
  report.longest_s = seen.longest_s;
  return report;
}

}  // namespace

void progress_board::watch(std::string thread, std::shared_ptr<const engine::activity> what) {
  const std::scoped_lock lock(mutex_);
  threads_.push_back({std::move(thread), std::move(what), work_timer(interval_)});
}

void progress_board::note_lost(std::string node) {
  const std::scoped_lock lock(mutex_);
  lost_.push_back({std::move(node), times_told});
}

std::vector<messages::element> progress_board::tell(std::chrono::steady_clock::time_point now) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(threads_, [](const auto& each) { return each.what.use_count() == 1; });
  std::vector<messages::element> all;
  for (auto& [thread, what, timer] : threads_) {
    const auto seen = what->read();
    if (!seen) continue;  // it gets on so fast that it cannot be read
    auto report = report_of(thread, *what, *seen);
    const auto running = timer.tick(report.count, now);
    if (report.kind) report.running_s = std::chrono::duration<double>(running).count();
    all.push_back(to_element(report));
  }
  for (auto& [name, times] : lost_) {
    all.push_back(to_element(loss_report{name}));
    --times;
  }
  std::erase_if(lost_, [](const lost_node& each) { return each.times == 0; });
  return all;
}

}  // namespace troupe::actors
