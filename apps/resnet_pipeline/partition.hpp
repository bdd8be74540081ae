#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cluster/config/trainer_config.hpp"
#include "engine/stage/layer.hpp"
#include "messages/error.hpp"

namespace troupe::apps {

/// The layers [first, last) of each slice of the model: where the config cuts, or else evenly by
/// multiply-adds over samples of `sample_shape` (without the batch dimension). Errors: bad_config.
[[nodiscard]] result<std::vector<std::pair<std::size_t, std::size_t>>> stage_ranges(
    const engine::model& layers, const cluster::pipeline_config& config,
    std::vector<std::int64_t> sample_shape);

}  // namespace troupe::apps
