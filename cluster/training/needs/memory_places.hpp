#pragma once

#include "cluster/training/application.hpp"
#include "cluster/training/needs/predicted_memory.hpp"
#include "cluster/training/prepared_run.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// A run with the predicted memory of its stages, and with the places that follow from it.
struct placed_run {
  trainer_config config;  ///< With the predicted memory of each stage, by which it is placed.
  predicted_memory memory;
};

/// Whether a node says how much memory its stages may take, of its own or of its GPUs.
[[nodiscard]] bool names_memory(const cluster_config& cluster);

/// Predicts the memory of each stage and places stages by it. A run that continues after a loss
/// keeps more or less on a node by where the others are: its memory is predicted again for the
/// places that the first prediction gives. Errors: those of predict_memory; bad_config where the
/// stages do not fit the memory of the nodes.
[[nodiscard]] result<placed_run> place_by_memory(const planned_run& of);

}  // namespace troupe::cluster
