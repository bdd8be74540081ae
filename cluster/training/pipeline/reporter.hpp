#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/observe/run_reporter.hpp"
#include "cluster/training/needs/device_peaks_core.hpp"
#include "cluster/training/prepared_run.hpp"
#include "engine/partition/stage_memory.hpp"

namespace troupe::cluster {

/// How the terminal shows the progress of a pipeline's run.
[[nodiscard]] progress_options progress_options_of(const train_config& train,
                                                   const prepared_run& run);

/// Writes what happens in a run of a pipeline to the terminal and to --json. Used by one thread.
class reporter {
 public:
  /// `out`: opened with progress_options_of.
  reporter(std::unique_ptr<run_reporter> out, const stage_tables& config);

  /// Before the first step. `memories`: the name of the device memory that each stage shares;
  /// `needs`: what the stages of one replica are predicted to take; empty: that is not known.
  void expect_on_devices(const std::vector<std::string>& memories,
                         const std::vector<engine::stage_memory>& needs);

  /// Before the first step: what the run goes on from has so many behind it.
  void begin_behind(std::uint64_t steps) noexcept { has_earlier_ = steps > 0; }

  void step(std::uint64_t step, const actors::step_outcome& outcome);
  void evaluation(const evaluation_report& outcome) { out_->evaluation(outcome); }
  void restart(const restart_report& what) { out_->restart(what); }
  void print(const std::string& line) { out_->print(line); }
  void print(const std::vector<std::string>& lines);

  /// Ends the progress bar, and says how far the prediction was off, if there was one, and what
  /// stages had of their devices' memory.
  void finish(const std::optional<engine::prediction>& predicted);

  /// Whether any update was applied yet, perhaps before this run.
  [[nodiscard]] bool any_applied() const noexcept { return applied_ > 0 || has_earlier_; }

  /// Errors: handler_failed where there were steps and not one was applied, saying why.
  [[nodiscard]] result<void> check_applied() const;

 private:
  std::unique_ptr<run_reporter> out_;
  bool scales_;                     // whether losses are scaled
  std::vector<std::string> names_;  // of the stages of all replicas
  std::vector<double> seconds_;     // of each step
  std::vector<double> bubbles_;
  std::vector<device_peak> peaks_;  // of each stage
  std::uint32_t accumulate_;        // steps of an update
  std::uint64_t applied_ = 0;       // updates
  bool has_earlier_ = false;        // steps that it has not been told
  bool is_left_out_ = false;        // the one under way
  std::string why_left_out_;        // the last step that was
};

}  // namespace troupe::cluster
