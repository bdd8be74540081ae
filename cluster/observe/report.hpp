#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::cluster {

/// What one stage did in one step.
struct stage_report {
  std::string name;
  double busy_s = 0;  ///< Doing arithmetic.
  double idle_s = 0;  ///< Waiting for an input or a credit.
  std::uint64_t peak_memory_bytes = 0;
  std::uint64_t peak_context_bytes = 0;  ///< Activations and gradients held for backwards.
  std::uint64_t peak_device_bytes = 0;   ///< Of its process on its device, so far; 0 on the CPU.
  std::uint64_t predicted_device_bytes = 0;  ///< Of the stage; 0: on the CPU, or not predicted.

  bool operator==(const stage_report&) const = default;
};

/// One training step.
struct step_report {
  std::uint64_t step = 0;  ///< The first is 1.
  double loss = 0;
  double seconds = 0;
  double samples_per_s = 0;  ///< Images, or sequences of text.
  double bubble = 0;         ///< See `bubble_of`.
  std::vector<stage_report> stages;
  std::optional<double> loss_scale = {};  ///< Where losses are scaled.

  bool operator==(const step_report&) const = default;
};

/// A trainer has taken the place of one that died or failed (see restarts_core).
struct restart_report {
  std::uint32_t restart = 0;     ///< Its number; the first is 1.
  std::uint64_t after_step = 0;  ///< The run goes on after this one; 0: from its beginning.

  bool operator==(const restart_report&) const = default;
};

/// The value of one metric in an evaluation; see engine::metric.
struct metric_report {
  std::string name;
  double value = 0;
  bool is_share = false;  ///< Shown in percent.
  std::string key = {};   ///< In the JSON lines; empty: its name.

  bool operator==(const metric_report&) const = default;
};

/// One pass over the test data.
struct evaluation_report {
  std::uint64_t eval_step = 0;  ///< Steps trained before it.
  std::vector<metric_report> metrics = {};

  /// The value of the metric of this name; nullopt: the program has none.
  [[nodiscard]] std::optional<double> value_of(std::string_view name) const;

  bool operator==(const evaluation_report&) const = default;
};

/// The share of the stages' time that was not spent on arithmetic: 1 - sum(busy) / (stages *
/// seconds), kept within 0 and 1 (clocks of different processes disagree a little); 0 where there
/// is no stage or no time.
[[nodiscard]] double bubble_of(std::span<const stage_report> stages, double seconds) noexcept;

}  // namespace troupe::cluster
