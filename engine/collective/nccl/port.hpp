#pragma once

#include <utility>
#include <vector>

#include "engine/collective/nccl/communicator.hpp"
#include "engine/collective/port.hpp"

namespace troupe::engine::nccl {

/// A group by NCCL. Where sums are in the order of the tree, each rank gets all ranks' parts of its
/// share (grouped send and receive), adds them up by kernels, and gives the sum to all that want it
/// (all-gather): as many bytes as a ring would send, in one order of additions. `sum_order::fast`
/// uses NCCL's own all-reduce and reduce-scatter. All of a group is on the communicator's stream at
/// once: the host waits for nothing in between.
class port final : public collective_port {
 public:
  /// Begins to join (see communicator).
  port(terms how, sum_order order);
  port(const port&) = delete;
  port& operator=(const port&) = delete;
  ~port() override;

  [[nodiscard]] std::uint32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::uint32_t ranks() const noexcept override { return ranks_; }
  using collective_port::submit;
  void submit(std::vector<collective_operation> group, done ended, started begun) override;
  void lose(error why) override { own_.lose(std::move(why)); }

 private:
  const std::uint32_t rank_;
  const std::uint32_t ranks_;
  const sum_order order_;
  communicator own_;
};

}  // namespace troupe::engine::nccl
