#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/observe/report.hpp"

namespace troupe::cluster {

enum class progress_style : std::uint8_t {
  bar,    ///< One live line at the bottom of a terminal.
  lines,  ///< Plain lines: every step of a short run, else one about every two seconds.
  quiet,  ///< Evaluations and printed lines only.
};

struct progress_options {
  std::uint64_t total_steps = 0;
  std::uint64_t steps_per_epoch = 0;  ///< 0: epochs are not shown.
  progress_style style = progress_style::lines;
  bool unicode = false;  ///< Draw the bar with box characters.
  std::FILE* out = stderr;
  std::function<int()> columns = [] { return 80; };
  std::function<std::chrono::steady_clock::time_point()> now = [] {
    return std::chrono::steady_clock::now();
  };
};

/// Options for a stream as it is: a bar on a terminal, else lines; the terminal's own width.
[[nodiscard]] progress_options progress_options_for(std::FILE* out);

/// Shows a person how a run goes. All members may be called from any thread. Failed writes are
/// ignored: a closed terminal must not end a run.
class progress {
 public:
  explicit progress(progress_options options);
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  ~progress();

  void step(const step_report& report);
  void evaluation(const evaluation_report& report);
  /// Prints a line (without newline) above the bar.
  void print(std::string_view line);
  /// Leaves the last bar on screen, complete, and ends its line. The destructor does it too.
  void finish();

 private:
  [[nodiscard]] bool due(const step_report& report) const;
  [[nodiscard]] double seconds_left() const;
  [[nodiscard]] std::string step_line() const;
  void show();
  void write_line(std::string_view line);
  void draw();

  progress_options options_;

  std::mutex mutex_;  // guards what follows, and writes to `options_.out`
  std::optional<step_report> last_;
  double smooth_step_s_ = 0;
  std::optional<std::chrono::steady_clock::time_point> shown_at_;
  bool last_is_shown_ = false;
  bool bar_is_drawn_ = false;
};

}  // namespace troupe::cluster
