#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "engine/model/layer.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// The layers that names mean, each a layer or a group of them ("layer3": "layer3.0", ..), by
/// index. Errors: bad_config for a name that means none (lists the allowed ones).
[[nodiscard]] result<std::vector<bool>> recomputed_layers(
    const std::vector<std::string>& layer_names, const std::vector<std::string>& names);

/// Runs layers in training so that only their input is kept; their backward repeats the forward
/// first (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016). To the bit what
/// running them plainly gives: what they draw is drawn again (see random_for), autocast is as it
/// was, and running statistics are updated once. The layers must outlive the recorded graph.
[[nodiscard]] at::Tensor run_recomputed(std::span<const std::unique_ptr<layer>> layers,
                                        const at::Tensor& input);

}  // namespace troupe::engine
