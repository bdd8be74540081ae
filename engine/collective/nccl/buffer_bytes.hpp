#pragma once

#include <cstdint>

#include "engine/collective/reach.hpp"
#include "engine/collective/sum_choice_core.hpp"

/// An estimate of what NCCL takes of a GPU's memory for the connections of one rank, which it does
/// not say by itself. From the source of NCCL 2.28.9, with its own settings: docs/gpu.md
/// ("NCCL's buffers") says how, and that no GPU has confirmed it.
namespace troupe::engine::nccl {

/// Of a replica that sums with others, `ranks` with itself; 0 where they sum over links. `over`:
/// what its sockets need (see sum_choice).
[[nodiscard]] double sum_buffer_bytes(std::uint32_t ranks, replica_sum_way way, socket_reach over);

/// Of either end of a communicator of two ranks, by which one sends and the other receives. `over`:
/// loopback where both are on one machine.
[[nodiscard]] double edge_buffer_bytes(bool sends, socket_reach over);

}  // namespace troupe::engine::nccl
