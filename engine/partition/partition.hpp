#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::engine {

// A partition of a model into stages is the list of the layers that begin every stage after the
// first, as indices into the model's layers: {4, 9} makes stages [0, 4), [4, 9) and [9, n).

/// Turns cuts, each the name of a stage's first layer, into indices. A name that groups several
/// layers means the first of them: "layer3" is "layer3.0". No cuts give one stage. Errors:
/// bad_config naming the cut and the allowed names, for a cut that is unknown, lies inside of a
/// layer, is the model's first layer, repeats, or does not come after the one before it.
[[nodiscard]] result<std::vector<std::size_t>> parse_cuts(
    const std::vector<std::string>& layer_names, const std::vector<std::string>& cuts);

/// Errors: bad_config for no stage, or stages of so many chunks each that there are more chunks
/// than layers (naming all three).
[[nodiscard]] result<void> check_stages(std::size_t layers, std::size_t stages,
                                        std::size_t chunks = 1);

/// Cuts layers of the given costs (any unit, none negative) into contiguous stages so that the
/// slowest is as fast as can be: dynamic programming, O(stages * layers^2). Of equal cuts it takes
/// the latest: cheap layers (an activation, a pooling) stay with what they follow. Errors:
/// bad_config for no stage, more stages than layers (as `check_stages`), or a cost that is not a
/// number from 0 up.
[[nodiscard]] result<std::vector<std::size_t>> even_cuts(const std::vector<double>& costs,
                                                         std::size_t stages);

/// Seconds or bytes of a stage with the layers [first, last); infinity: it cannot have them.
using cut_cost = std::function<double(std::size_t stage, std::size_t first, std::size_t last)>;

/// Cuts that make the largest cost of a stage as small as can be, the latest of equal ones; nullopt
/// where every cut costs infinity. Time: stages * layers^2.
[[nodiscard]] std::optional<std::vector<std::size_t>> minimax_cuts(std::size_t stages,
                                                                   std::size_t layers,
                                                                   const cut_cost& cost);

}  // namespace troupe::engine
