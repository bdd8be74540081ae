#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cluster/config/registries.hpp"
#include "cluster/config/trainer_config.hpp"
#include "engine/blueprint/model_blueprint.hpp"
#include "engine/data/dataset.hpp"
#include "engine/partition/planner.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// How a run's model and batches are cut.
struct chosen_partition {
  std::vector<engine::layer_range> ranges;  // of each slice
  std::uint32_t microbatches = 1;
  std::optional<engine::prediction> predicted;  // where the layers were profiled
};

/// Where the run's stages are, and what they keep. Errors: bad_config for layers to recompute that
/// there are not.
[[nodiscard]] result<engine::planning> planning_of(const trainer_config& config,
                                                   const registries& known,
                                                   const engine::model& layers);

/// The first samples of the data, from the start again where they are few. Errors: those of reading
/// them; bad_data where none could be read.
[[nodiscard]] result<engine::batch> first_samples(const engine::dataset& data, std::int64_t count);

/// Cuts where the config says, evenly by multiply-adds, or by what the layers cost here, and
/// chooses the number of micro-batches where the config leaves it open. Layers are profiled only
/// where that is needed or asked for (observe.predict, observe.save_profile, which it then writes),
/// as many at once as stages will run at once. `layers`: the blueprint's, described. Errors:
/// bad_config; handler_failed when a profile fails; io_failed when it cannot be written.
[[nodiscard]] result<chosen_partition> choose_partition(const engine::model& layers,
                                                        const engine::model_blueprint& blueprint,
                                                        const trainer_config& config,
                                                        const registries& known,
                                                        const engine::dataset& data);

}  // namespace troupe::cluster
