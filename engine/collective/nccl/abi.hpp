#pragma once

#include <climits>
#include <cstddef>

/// The part of NCCL's binary interface that we use, so that neither NCCL's nor CUDA's headers are
/// needed to build. The values are those of nccl.h and never change within NCCL 2.
namespace troupe::engine::nccl {

/// NCCL's ncclComm_t points to one.
struct communicator_handle;

/// ncclResult_t.
enum class status : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

/// ncclDataType_t.
enum class data_type : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
};

/// ncclRedOp_t.
enum class reduction : int { sum = 0, product = 1, maximum = 2, minimum = 3, average = 4 };

/// ncclUniqueId: what the ranks of one communicator have in common.
struct unique_id {
  char bytes[128];
};

/// `2.18.3` as NCCL writes it: 21803.
[[nodiscard]] constexpr int version_code(int major, int minor, int patch) {
  return major * 10000 + minor * 100 + patch;
}

/// The oldest NCCL that has all that we call and knows `configuration` as it is here.
inline constexpr int oldest_version = version_code(2, 18, 0);

/// ncclConfig_t as NCCL 2.18 has it. Later versions read as much as `size` and `version` tell.
struct configuration {
  std::size_t size = sizeof(configuration);
  unsigned int magic = 0xcafebeef;
  unsigned int version = oldest_version;
  int blocking = 0;  ///< 0: calls return at once, and the communicator's state is polled.
  int cga_cluster_size = INT_MIN;
  int fewest_thread_blocks = INT_MIN;
  int most_thread_blocks = INT_MIN;
  const char* network = nullptr;
  int split_share = INT_MIN;
  int padding = 0;
};

/// cudaStream_t.
using stream_handle = void*;

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t width(data_type type) {
  switch (type) {
    case data_type::int8:
    case data_type::uint8:
      return 1;
    case data_type::float16:
    case data_type::bfloat16:
      return 2;
    case data_type::int32:
    case data_type::uint32:
    case data_type::float32:
      return 4;
    case data_type::int64:
    case data_type::uint64:
    case data_type::float64:
      return 8;
  }
  return 0;
}

}  // namespace troupe::engine::nccl
