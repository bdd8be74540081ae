#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "actors/pipeline/pipeline.hpp"
#include "cluster/training/application.hpp"
#include "engine/partition/planner.hpp"

namespace troupe::cluster {

/// What is known of a run before any node starts.
struct prepared_run {
  std::shared_ptr<const engine::dataset> data;
  engine::model_order model;
  std::vector<std::string> layer_names;
  std::vector<engine::layer_range> ranges;  // of each slice
  std::uint32_t microbatches = 1;
  std::optional<engine::prediction> predicted;             // where the layers were profiled
  std::vector<actors::stage_tie> ties;                     // between stages
  std::vector<std::vector<engine::named_tensor>> weights;  // of each slice; empty: from the seed
  std::vector<std::vector<engine::named_tensor>> states;   // of its optimizer, like the weights
  std::optional<engine::loss_scaler> scaler;               // where the loss scale is dynamic
  std::uint64_t steps = 0;  // several may make one update (--accumulate)
};

/// Opens the data, builds the model once to cut it, and reads --init. Errors: bad_config, bad_data.
[[nodiscard]] result<prepared_run> prepare(const application& program,
                                           const trainer_config& config);

/// The whole model as it is before the run, laid out as the config says. Errors: as `prepare`.
[[nodiscard]] result<engine::model> build_whole(const application& program,
                                                const trainer_config& config,
                                                const prepared_run& run);

/// How the config has the model computed, as if by one stage. Errors: bad_config for an unknown
/// loss.
[[nodiscard]] result<engine::stage_options> stage_options_of(const trainer_config& config,
                                                             const registries& known);

}  // namespace troupe::cluster
