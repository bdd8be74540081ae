#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::cluster {

/// What one stage did in one step.
struct stage_report {
  std::string name;
  double busy_s = 0;  ///< Doing arithmetic.
  double idle_s = 0;  ///< Waiting for an input or a credit.
  std::uint64_t peak_memory_bytes = 0;
  std::uint64_t peak_context_bytes = 0;  ///< Activations and gradients held for backwards.

  bool operator==(const stage_report&) const = default;
};

/// One optimizer step, seen from outside.
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

/// One pass over the test data.
struct evaluation_report {
  std::uint64_t eval_step = 0;  ///< Steps trained before it.
  double accuracy = 0;          ///< 0 to 1
  double eval_loss = 0;

  bool operator==(const evaluation_report&) const = default;
};

/// The share of the stages' time that was not spent on arithmetic: 1 - sum(busy) / (stages *
/// seconds), kept within 0 and 1 (clocks of different processes disagree a little); 0 where there
/// is no stage or no time.
[[nodiscard]] double bubble_of(std::span<const stage_report> stages, double seconds) noexcept;

}  // namespace troupe::cluster
