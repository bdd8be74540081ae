#include "cluster/training/pipeline/reporter.hpp"

#include <algorithm>

#include "engine/data/sampler.hpp"
#include "engine/partition/prediction.hpp"

namespace troupe::cluster {
namespace {

/// The first step warms up; it counts only where it is the only one.
double median_of(std::vector<double> values) {
  if (values.size() > 1) values.erase(values.begin());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

progress_options progress_options_of(const train_config& train, const prepared_run& run) {
  auto options = progress_options_for(stderr);
  options.total_steps = run.steps;
  options.steps_per_epoch = static_cast<std::uint64_t>(
      engine::batch_count(run.data->size(engine::split::train), train.batch_size));
  return options;
}

reporter::reporter(std::unique_ptr<run_reporter> out, const stage_tables& config)
    : out_(std::move(out)),
      scales_(loss_scale_of(config.model, config.train) != 1),
      names_(stage_names_of(config.pipeline)),
      accumulate_(config.train.accumulate) {
  for (const auto& name : names_) peaks_.push_back({.stage = name, .memory = name});
}

void reporter::expect_on_devices(const std::vector<std::string>& memories,
                                 const std::vector<engine::stage_memory>& needs) {
  for (std::size_t i = 0; i < peaks_.size(); ++i) {
    peaks_[i].memory = memories.at(i);
    if (!needs.empty()) peaks_[i].predicted_bytes = needs[i % needs.size()].on_device;
  }
}

void reporter::step(std::uint64_t step, const actors::step_outcome& outcome) {
  step_report report{.step = step,
                     .loss = outcome.loss,
                     .seconds = outcome.seconds,
                     .samples_per_s = static_cast<double>(outcome.samples) / outcome.seconds,
                     .stages = {}};
  if (scales_) report.loss_scale = outcome.loss_scale;
  for (std::size_t i = 0; i < outcome.stages.size(); ++i) {
    const auto& each = outcome.stages[i];
    auto& peak = peaks_.at(i);
    const bool on_device = each.peak_device_bytes > 0;
    peak.measured_bytes =
        std::max(peak.measured_bytes, static_cast<double>(each.peak_device_bytes));
    report.stages.push_back({.name = names_.at(i),
                             .busy_s = each.busy_s,
                             .idle_s = std::max(0.0, outcome.seconds - each.busy_s),
                             .peak_memory_bytes = each.peak_memory_bytes,
                             .peak_context_bytes = each.peak_context_bytes,
                             .peak_device_bytes = each.peak_device_bytes,
                             .predicted_device_bytes =
                                 on_device ? static_cast<std::uint64_t>(peak.predicted_bytes) : 0});
  }
  report.bubble = bubble_of(report.stages, outcome.seconds);
  seconds_.push_back(outcome.seconds);
  bubbles_.push_back(report.bubble);
  out_->step(report);
  if (!outcome.skipped.empty()) {
    print("skipped " + outcome.skipped);
    why_left_out_ = outcome.skipped;
    is_left_out_ = true;
  }
  if (step % accumulate_ != 0) return;
  if (!is_left_out_) ++applied_;
  is_left_out_ = false;
}

result<void> reporter::check_applied() const {
  if (any_applied() || why_left_out_.empty()) return {};
  return fail(errc::handler_failed,
              "nothing was trained, and nothing is saved: not one of " +
                  std::to_string(seconds_.size()) +
                  " steps was applied; the last one that was left out: " + why_left_out_);
}

void reporter::print(const std::vector<std::string>& lines) {
  for (const auto& line : lines) print(line);
}

void reporter::finish(const std::optional<engine::prediction>& predicted) {
  out_->finish();
  if (predicted && !seconds_.empty())
    print(engine::against_measured(*predicted, median_of(seconds_), median_of(bubbles_)));
  auto table = device_peak_table(peaks_);
  if (table.empty()) return;
  table.pop_back();  // the last line's end is whoever prints it
  print(table);
}

}  // namespace troupe::cluster
