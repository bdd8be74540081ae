#include "engine/collective/nccl/buffer_bytes.hpp"

#include <algorithm>

namespace troupe::engine::nccl {
namespace {

constexpr std::uint64_t kibi = 1 << 10, mebi = 1 << 20;

/// Of a connection, which leads from one rank to another on one channel, the receiver has a buffer
/// for each of NCCL's protocols: LL, LL128 and simple (NCCL_BUFFSIZE and its like).
constexpr std::uint64_t protocol_bytes = (512 + 4800 + 4096) * kibi;

/// What other processes may map is of whole pieces of this size.
constexpr std::uint64_t piece = 2 * mebi;

/// Beside the buffers there is a page for counters, which is all that the sender has.
constexpr std::uint64_t counters = 4 * kibi;

constexpr std::uint64_t in_pieces(std::uint64_t bytes) {
  return (bytes + piece - 1) / piece * piece;
}

constexpr std::uint64_t receiver_bytes = in_pieces(protocol_bytes + counters);
constexpr std::uint64_t sender_bytes = in_pieces(counters);

/// The most between two GPUs of one machine, which NVLink joins. Over PCIe it takes 2.
constexpr std::uint64_t channels = 32;

/// The most between machines, and then of all that ranks send each other: 2, and since NCCL 2.29
/// one for each 14 GB/s of the network.
constexpr std::uint64_t network_channels = 4;

/// Where a rank sends to another one, or receives from it.
constexpr double end_bytes(bool sends, socket_reach over) {
  const bool is_network = over == socket_reach::network;  // where the sender has buffers too
  const auto each = sends && !is_network ? sender_bytes : receiver_bytes;
  return static_cast<double>((is_network ? network_channels : channels) * each);
}

/// Where it does both.
constexpr double both_ways(socket_reach over) {
  return end_bytes(true, over) + end_bytes(false, over);
}

}  // namespace

double sum_buffer_bytes(std::uint32_t ranks, replica_sum_way way, socket_reach over) {
  if (ranks < 2 || way == replica_sum_way::links) return 0;
  const auto others = ranks - 1;
  constexpr std::uint32_t most_in_tree = 2;
  // Rings and trees have channels of their own, whose number falls less between machines.
  constexpr auto neighbour = both_ways(socket_reach::loopback);
  // Parts go from each rank to each other one, and sums around a ring.
  if (way == replica_sum_way::ordered) return others * both_ways(over) + neighbour;
  return neighbour * (1 + std::min(others, most_in_tree));
}

double edge_buffer_bytes(bool sends, socket_reach over) {
  return end_bytes(sends, over);
}

}  // namespace troupe::engine::nccl
