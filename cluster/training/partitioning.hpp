#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cluster/config/config_tables.hpp"
#include "cluster/config/registries.hpp"
#include "cluster/config/setting_places.hpp"
#include "engine/data/dataset.hpp"
#include "engine/model/layer.hpp"
#include "engine/partition/planner.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

struct layers_to_measure;

/// How a run's model and batches are cut.
struct chosen_partition {
  std::vector<engine::layer_range> ranges;  // of each slice
  std::uint32_t microbatches = 1;
  std::optional<engine::prediction> predicted;  // where the layers were profiled
};

/// The run's stages, threads, transport and memory bounds, as the planner takes them. Errors:
/// bad_config for unknown layers to recompute.
[[nodiscard]] result<engine::planning> planning_of(const stage_tables& config,
                                                   const registries& known,
                                                   const engine::model& layers);

/// The first `count` samples of the data, starting over if there are fewer. Errors: those of
/// reading them; bad_data if none could be read.
[[nodiscard]] result<engine::batch> first_samples(const engine::dataset& data, std::int64_t count);

/// Of one of the samples, as the model is given it.
[[nodiscard]] double bytes_of_sample(const engine::batch& samples);

/// Micro-batches, or groups of them (engine::norm_groups), in a replica's plan of a training step
/// whose batch has so many micro-batches.
[[nodiscard]] std::uint32_t planned_microbatches(const pipeline_config& pipeline,
                                                 const train_config& train,
                                                 std::uint32_t microbatches);

/// The slices where the config names the first layer of each, which takes no data; else none, once
/// there is a layer for each slice. Errors: bad_config.
[[nodiscard]] result<std::vector<engine::layer_range>> named_slices(const engine::model& layers,
                                                                    const pipeline_config& config,
                                                                    const setting_places& places,
                                                                    const registries& known);

/// Cuts the model where the config says, evenly by multiply-accumulates, or by the measured costs
/// of the layers, and chooses the number of micro-batches if the config leaves it open. Layers are
/// profiled only if that is needed or requested (observe.predict, observe.save_profile, which it
/// then writes), as many at once as stages will run at once. Errors: bad_config; handler_failed if
/// a profile fails; io_failed if it cannot be written.
[[nodiscard]] result<chosen_partition> choose_partition(const layers_to_measure& what);

}  // namespace troupe::cluster
