#include "engine/step/loss_scaler.hpp"

#include <algorithm>

namespace troupe::engine {

void loss_scaler::hear(bool finite) noexcept {
  if (!finite) {
    applied = 0;
    scale = std::max(least, scale * backoff);
  } else if (++applied >= interval) {
    applied = 0;
    scale = std::min(most, scale * growth);
  }
}

}  // namespace troupe::engine
