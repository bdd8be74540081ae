#pragma once

#include <cstddef>
#include <memory>

#include "actors/pipeline/distant_data.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/training/application.hpp"

namespace troupe::cluster {

/// How the data that the config names are opened, here or by a stage's process.
[[nodiscard]] engine::dataset_options dataset_options_of(const application& program,
                                                         const trainer_config& config);

/// Opens the data that the config names, in this process. Errors: those of engine::open_dataset.
[[nodiscard]] result<std::shared_ptr<const engine::dataset>> open_data_here(
    const application& program, const trainer_config& config);

/// Has the process of a stage open the data and read the batches from then on. Errors: those of
/// opening it, with the name of the node; peer_lost.
[[nodiscard]] result<std::shared_ptr<const actors::distant_data>> open_data_at(
    node_group& group, std::size_t stage, const application& program, const trainer_config& config);

}  // namespace troupe::cluster
