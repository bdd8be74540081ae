#pragma once

#include "actors/pipeline/pipeline.hpp"
#include "cluster/training/prepared_run.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Loads the stages from a file that the run starts from or goes back to. A stage whose process
/// sees the file reads its own tensors there; the others are sent theirs from here, a piece at a
/// time. Errors: bad_data, also for a file that is changed meanwhile; bad_config, peer_lost.
[[nodiscard]] result<void> load_init(actors::pipeline& stages, const prepared_run& run,
                                     const checkpoint& from);

/// Layers as they are before the run's first step, laid out as the config says. Nothing else is
/// kept in memory. `weights`: of the run's seed. Errors: handler_failed, bad_data,
/// bad_config.
[[nodiscard]] result<engine::model> layers_before(engine::initial_weights& weights,
                                                  engine::layer_range which,
                                                  const model_config& model,
                                                  const prepared_run& run);

}  // namespace troupe::cluster
