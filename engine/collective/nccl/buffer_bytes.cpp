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

/// The most that two ranks have where NVLink joins their GPUs. Over PCIe it takes 2.
constexpr std::uint64_t channels = 32;

/// Other ranks that a rank has connections to and from.
constexpr double both_ways(std::uint32_t others) {
  return static_cast<double>(others * channels * (receiver_bytes + sender_bytes));
}

}  // namespace

double sum_buffer_bytes(std::uint32_t ranks, replica_sum_way way) {
  if (ranks < 2 || way == replica_sum_way::links) return 0;
  const auto others = ranks - 1;
  constexpr std::uint32_t in_ring = 1, most_in_tree = 2;
  // Parts go from each rank to each other one, and sums around a ring.
  if (way == replica_sum_way::ordered) return both_ways(others + in_ring);
  return both_ways(in_ring + std::min(others, most_in_tree));
}

double edge_buffer_bytes(bool sends) {
  return static_cast<double>(channels * (sends ? sender_bytes : receiver_bytes));
}

}  // namespace troupe::engine::nccl
