#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/training/prepared_run.hpp"
#include "cluster/observe/json_lines.hpp"
#include "cluster/observe/progress.hpp"

namespace troupe::apps {

/// Writes what happens in a run to the terminal and to --json. Used by one thread.
class reporter {
 public:
  /// Errors: io_failed for --json.
  [[nodiscard]] static result<std::unique_ptr<reporter>> open(const cluster::trainer_config& config,
                                                              const prepared_run& run);

  void step(std::uint64_t update, const actors::step_outcome& outcome);
  void evaluation(const actors::evaluation& outcome);
  void print(const std::string& line) { progress_.print(line); }
  void print(const std::vector<std::string>& lines);

  /// Ends the progress bar, and says how far the prediction was off, if there was one.
  void finish(const std::optional<engine::prediction>& predicted);

  /// The first failed write to --json, if one failed.
  [[nodiscard]] const std::optional<error>& failure() const noexcept { return failure_; }

 private:
  reporter(const cluster::trainer_config& config, const prepared_run& run);
  void keep(const result<void>& written);

  cluster::progress progress_;
  std::optional<cluster::json_lines> json_;
  std::optional<error> failure_;
  std::vector<double> seconds_;  // of each step
  std::vector<double> bubbles_;
};

}  // namespace troupe::apps
