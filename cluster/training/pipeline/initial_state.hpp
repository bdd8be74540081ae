#pragma once

#include "actors/pipeline/pipeline.hpp"
#include "cluster/training/prepared_run.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Gives the stages what a file holds that the run begins from, or goes back to: each reads what
/// belongs to it where its process sees the file, and the others are sent it from here, a piece at
/// a time. Errors: bad_data, peer_lost.
[[nodiscard]] result<void> load_init(actors::pipeline& stages, const prepared_run& run,
                                     const checkpoint& from);

/// Layers as they are before the run's first step, laid out as the config says. Nothing else is
/// kept in memory. `weights`: of the run's seed. Errors: handler_failed, bad_data.
[[nodiscard]] result<engine::model> layers_before(engine::initial_weights& weights,
                                                  engine::layer_range which,
                                                  const model_config& model,
                                                  const prepared_run& run);

}  // namespace troupe::cluster
