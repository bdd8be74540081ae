#pragma once

#include <cstddef>
#include <vector>

#include "engine/partition/model_profile.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// What layers cost at any size of micro-batch: a fixed price and one for each sample, the line
/// through two profiles of different sizes. Through one profile: no fixed price is known, so it
/// holds at that size only.
class cost_model {
 public:
  /// One or two profiles of the same layers. Errors: bad_config when they do not match.
  [[nodiscard]] static result<cost_model> fit(const std::vector<model_profile>& profiles);

  [[nodiscard]] model_profile at(double samples) const;
  [[nodiscard]] std::size_t layers() const noexcept { return fixed_.layers.size(); }

 private:
  model_profile fixed_;     // seconds and bytes whatever the size
  model_profile a_sample_;  // and for each sample
};

}  // namespace troupe::engine
