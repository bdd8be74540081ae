#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan.hpp"
#include "engine/schedule/simulation.hpp"
#include "messages/error.hpp"

namespace troupe::apps {

/// What `troupe plan` is asked for.
struct plan_request {
  engine::schedule_choice schedule;
  std::uint32_t stages = 2;
  std::uint32_t micro_batches = 4;
  std::filesystem::path check;  ///< Take this plan instead of a generator's; empty: do not.
  engine::slice_cost costs;     ///< Of one micro-batch on a whole stage.
  double latency = 0;           ///< Of a message, in the unit of the costs.
  std::filesystem::path svg;    ///< Write a chart there; empty: do not.
  std::filesystem::path text;   ///< Write the plan there; empty: do not.
  std::size_t columns = 120;    ///< Of the chart in the report, at most.
  bool colour = false;
};

/// A plan and what becomes of it at given costs.
struct predicted_plan {
  engine::plan steps;
  std::vector<engine::slice_cost> costs;
  engine::simulation run;
};

/// Makes or reads the plan, checks and simulates it. Errors: bad_config with the file, line,
/// column, action and rule; io_failed.
[[nodiscard]] result<predicted_plan> predict(const plan_request& request);

/// The plan, its chart, and its time, bubble and memory, for people.
[[nodiscard]] std::string report(const predicted_plan& predicted, const plan_request& request);

/// Predicts, writes the files asked for, and returns the report. Errors: as `predict`.
[[nodiscard]] result<std::string> run_plan_command(const plan_request& request);

}  // namespace troupe::apps
