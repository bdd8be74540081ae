#pragma once

#include <cstdint>

namespace troupe::engine {

/// How stages of different processes send each other activations and gradients.
enum class edge_transport : std::uint8_t {
  link,  ///< Through host memory, and over a link.
  nccl,  ///< From GPU to GPU, each stage with one of its own.
  ucx,   ///< From GPU to GPU inside a machine, also where stages share one.
};

}  // namespace troupe::engine
