#pragma once

#include "cluster/training/application.hpp"

namespace troupe::apps {

/// resnet_pipeline: trains a residual network on images.
[[nodiscard]] application resnet_application();

}  // namespace troupe::apps
