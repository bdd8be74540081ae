#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cluster/config/config_tables.hpp"
#include "cluster/observe/json_lines.hpp"
#include "cluster/observe/progress.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Writes what happens in a run to the terminal and to its JSON file. A write that fails never ends
/// the run: the first one to the JSON file is a warning, and the last one. Used by one thread.
class run_reporter {
 public:
  /// Creates the file of observe.json, if there is to be one, and says what was kept of it; or goes
  /// on behind what a trainer before this one has written (`json_is_begun`). `restart`: 0 in the
  /// first trainer of a run. Errors, in that one: those of json_lines, which in a later one are a
  /// warning, and it writes no file.
  [[nodiscard]] static result<std::unique_ptr<run_reporter>> open(const observe_config& observe,
                                                                  std::uint32_t restart,
                                                                  bool json_is_begun,
                                                                  progress_options options);

  void step(const step_report& report);
  void evaluation(const evaluation_report& report);
  /// To the file alone: the terminal has been told of it.
  void restart(const restart_report& report);
  void print(const std::string& line) { progress_.print(line); }
  void finish() { progress_.finish(); }

 private:
  explicit run_reporter(progress_options options) : progress_(std::move(options)) {}
  void look_at(const result<void>& written);
  void warn(const error& why);

  progress progress_;
  std::optional<json_lines> json_;  // none, or not any more
};

}  // namespace troupe::cluster
