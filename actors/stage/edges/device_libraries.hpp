#pragma once

#include <memory>

#include "engine/collective/edge_transport.hpp"

namespace troupe::engine {
class collective_maker;
}  // namespace troupe::engine

namespace troupe::actors {

/// What stages may use between processes instead of links, where their devices are GPUs.
struct device_libraries {
  /// For sums over replicas, and edges = "nccl"; null: NCCL.
  std::shared_ptr<const engine::collective_maker> sums = {};
  /// For edges = "ucx", between two stages; null: UCX.
  std::shared_ptr<const engine::collective_maker> copies = {};

  /// Not of `link`.
  [[nodiscard]] const auto& of(engine::edge_transport by) const noexcept {
    return by == engine::edge_transport::ucx ? copies : sums;
  }
};

/// With what is meant where there is null.
[[nodiscard]] device_libraries with_usual(device_libraries some);

}  // namespace troupe::actors
