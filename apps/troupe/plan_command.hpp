#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan.hpp"
#include "engine/schedule/simulation.hpp"
#include "messages/base/error.hpp"

namespace troupe::apps {

/// A profiled model to plan for, where the costs are not given. What is not set is as it was in the
/// run that measured.
struct measured_model {
  std::filesystem::path file;                  ///< Its profile; empty: none.
  std::vector<std::string> partition{"auto"};  ///< Or "even", or the first layer of each slice
                                               ///< after the first.
  std::vector<std::string> recompute;          ///< Layers, or groups of them.
  std::uint64_t memory_mib = 0;                ///< Cap of a stage for "auto"; 0: none.
  std::uint64_t device_memory_mib = 0;         ///< The same of what it has on a GPU.
  std::optional<std::int64_t> batch_size;
  std::optional<std::uint32_t> cores;  ///< That all stages share.
  std::optional<double> link_gbytes;   ///< 1e9 bytes a second at which a stage sends; 0: by
                                       ///< reference.
  double network_gbits = 0;            ///< 1e9 bits a second each way between stages; 0: no bound.
  double network_ms = 0;               ///< One way.
  bool layers = false;                 ///< Show what a step spends in each layer.
};

/// What `troupe plan` is asked for.
struct plan_request {
  engine::schedule_choice schedule;
  std::uint32_t stages = 2;
  std::uint32_t micro_batches = 4;  ///< 0: of a profiled model, the number that is the fastest.
  measured_model measured;
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
  std::vector<std::string> lines;  ///< About a profiled model's stages; its times are in seconds.
};

/// Makes or reads the plan, checks and simulates it, and writes the files asked for. Returns the
/// plan, its chart, and its time, bubble and memory, for people. Errors: bad_config with the file,
/// line, column, action and rule; io_failed; bad_data for a profile.
[[nodiscard]] result<std::string> run_plan_command(const plan_request& request);

}  // namespace troupe::apps
