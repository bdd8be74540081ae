#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/partition/planner.hpp"

namespace troupe::engine {

/// Layers to be cut into the slices of a layout whose stages have several each.
struct slicing {
  std::size_t layers = 0;
  model_layout layout = {};
  /// What a range of layers adds to its stage as the slice at a virtual stage. Not negative.
  std::function<double(std::uint32_t virtual_stage, layer_range slice)> load = {};
  /// Whether a stage can have these slices, its first chunks; what it cannot have it cannot have
  /// with more chunks either.
  std::function<bool(std::uint32_t stage, std::span<const layer_range> slices)> fits = {};
};

/// Cuts that load the stages evenly, at most `width` of them, the most even first; none where no
/// cut was found to fit. A beam search: over slices in the order of the model, keeps of the ways to
/// cut off each number of layers the `width` that leave the stages closest to equal shares. Where
/// there are no more ways than that, all of them are returned. Time: virtual stages * layers^2 *
/// width.
[[nodiscard]] std::vector<std::vector<std::size_t>> search_cuts(const slicing& of,
                                                                std::size_t width);

}  // namespace troupe::engine
