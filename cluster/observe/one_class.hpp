#pragma once

#include <string>

#include "engine/data/dataset.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {

/// Says it where samples of one class alone can teach a model nothing.
inline void warn_of_one_class(const std::string& source, const engine::dataset& data) {
  if (data.classes() > 1) return;
  log::warning(source +
               ": all samples are of one class, so there is nothing to tell apart: any model is "
               "right, and the loss falls to 0");
}

}  // namespace troupe::cluster
