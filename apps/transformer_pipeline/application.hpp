#pragma once

#include "cluster/training/application.hpp"

namespace troupe::apps {

/// transformer_pipeline: trains a GPT-style decoder on text, byte by byte.
[[nodiscard]] application transformer_application();

}  // namespace troupe::apps
