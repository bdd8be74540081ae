#include "actors/remote/progress_core.hpp"

#include <algorithm>
#include <cmath>

#include "messages/base/format.hpp"

namespace troupe::actors {
namespace {

using messages::element;

constexpr double times_usual = 10;
constexpr double times_longest = 3;
constexpr double times_without_past = 6;
constexpr double more_before_again = 2;

constexpr const char* element_name = "progress";
constexpr const char* loss_name = "loss";
constexpr std::int64_t waits = -1;  // in the place of a kind of work
constexpr double no_past = -1;      // in the place of a usual time

std::string in_seconds(double seconds) {
  return format(seconds < 0.095 ? "%.3f s" : "%.1f s", seconds);
}

/// "stage-1 has been in forward of micro-batch 3, step 17, layer layer3.0, for 12.0 s (usually 0.2
/// s)"
std::string describe(const std::string& node, const progress_report& report) {
  auto text = node + " has been in " + report.what;
  if (!report.place.empty()) text += ", " + report.place;
  text += ", for " + in_seconds(report.running_s);
  return text + (report.usual_s ? " (usually " + in_seconds(*report.usual_s) + ")"
                                : " (its first of this kind and shape)");
}

template <class T>
const T* field(const element& in, std::size_t number) {
  return std::get_if<T>(&in.fields[number].of);
}

}  // namespace

element to_element(const progress_report& report) {
  return {element_name,
          {{report.thread},
           {static_cast<std::int64_t>(report.count)},
           {report.kind ? static_cast<std::int64_t>(*report.kind) : waits},
           {report.what},
           {report.place},
           {report.running_s},
           {report.usual_s.value_or(no_past)},
           {report.longest_s}}};
}

std::optional<progress_report> to_report(const element& in) {
  if (in.type != element_name || in.fields.size() != 8) return std::nullopt;
  const auto* thread = field<std::string>(in, 0);
  const auto* count = field<std::int64_t>(in, 1);
  const auto* kind = field<std::int64_t>(in, 2);
  const auto* what = field<std::string>(in, 3);
  const auto* place = field<std::string>(in, 4);
  const auto* running = field<double>(in, 5);
  const auto* usual = field<double>(in, 6);
  const auto* longest = field<double>(in, 7);
  if (!thread || !count || !kind || !what || !place || !running || !usual || !longest)
    return std::nullopt;
  if (*kind < waits || *kind > static_cast<std::int64_t>(engine::last_work_kind))
    return std::nullopt;
  if (!std::isfinite(*running) || !std::isfinite(*usual) || !std::isfinite(*longest))
    return std::nullopt;
  progress_report report{.thread = *thread,
                         .count = static_cast<std::uint64_t>(*count),
                         .what = *what,
                         .place = *place,
                         .running_s = *running,
                         .longest_s = *longest};
  if (*kind != waits) report.kind = static_cast<engine::work_kind>(*kind);
  if (*usual >= 0) report.usual_s = *usual;
  return report;
}

element to_element(const loss_report& report) {
  return {loss_name, {{report.node}}};
}

std::optional<loss_report> to_loss(const element& in) {
  if (in.type != loss_name || in.fields.size() != 1) return std::nullopt;
  const auto* node = field<std::string>(in, 0);
  return node == nullptr ? std::nullopt : std::optional(loss_report{*node});
}

work_timer::clock::duration work_timer::tick(std::uint64_t count, clock::time_point now) {
  const auto passed = last_ ? std::min(now - *last_, 2 * interval_) : clock::duration(0);
  last_ = now;
  running_ = count == count_ ? running_ + passed : clock::duration(0);
  count_ = count;
  return running_;
}

double progress_core::slow_limit(const std::string& node, const progress_report& report) const {
  double usual = report.usual_s.value_or(0);
  if (const auto of = settings_.predicted.find(node); of != settings_.predicted.end()) {
    if (const auto found = of->second.find(*report.kind); found != of->second.end())
      usual = std::max(usual, found->second);
  }
  const double least = settings_.slow_after.count() * (report.usual_s ? 1 : times_without_past);
  return std::max({least, times_usual * usual, times_longest * report.longest_s});
}

progress_core::effects progress_core::heard(const std::string& node,
                                            const progress_report& report) {
  effects out;
  if (hung_.contains(node)) return out;
  auto& state = threads_[{node, report.thread}];
  if (report.count != state.count || !report.kind) {
    if (state.say_after_s > 0)
      out.emplace_back(
          went_on{node, node + " goes on: " + state.what + " took " + in_seconds(state.running_s)});
    state = {.count = report.count, .what = {}};
  }
  if (!report.kind) return out;
  state.running_s = report.running_s;
  state.what = report.what;
  const double hang_timeout = settings_.hang_timeout.count();
  if (hang_timeout > 0 && report.running_s >= hang_timeout) {
    hung_.insert(node);
    out.emplace_back(
        hung{node,
             {errc::timed_out, describe(node, report) + ", longer than --hang-timeout allows (" +
                                   in_seconds(hang_timeout) + ")"}});
    return out;
  }
  if (settings_.slow_after.count() <= 0) return out;
  if (report.running_s < std::max(slow_limit(node, report), state.say_after_s)) return out;
  state.say_after_s = more_before_again * report.running_s;
  out.emplace_back(slow{node, describe(node, report)});
  return out;
}

}  // namespace troupe::actors
