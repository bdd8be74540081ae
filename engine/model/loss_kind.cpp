#include "engine/model/loss_kind.hpp"

#include <algorithm>

namespace troupe::engine {

result<loss_kind> parse_loss(const std::string& name) {
  const auto found = std::ranges::find(loss_names, name);
  if (found != loss_names.end()) return static_cast<loss_kind>(found - loss_names.begin());
  return fail(errc::bad_config, "unknown loss '" + name + "'; known: cross-entropy, mse");
}

}  // namespace troupe::engine
