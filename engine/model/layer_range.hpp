#pragma once

#include <cstddef>
#include <vector>

namespace troupe::engine {

/// Layers [first, last) of a model.
struct layer_range {
  std::size_t first = 0;
  std::size_t last = 0;

  bool operator==(const layer_range&) const = default;

  /// Its members, for messages that carry it.
  static void fields(auto& self, auto& f) { f(self.first, self.last); }
};

/// The slices that cuts make, in the order of the model. A cut is the index of the first layer of a
/// slice after the first.
[[nodiscard]] std::vector<layer_range> slices_between(const std::vector<std::size_t>& cuts,
                                                      std::size_t layers);

}  // namespace troupe::engine
