#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/collective/nccl/abi.hpp"

namespace troupe::tests::fake_nccl {

inline constexpr int most_ranks = 8;
inline constexpr std::size_t piece_bytes = 64 * 1024;

/// What a rank calls, as far as all ranks must call the same.
struct call_shape {
  std::uint32_t function = 0;
  std::uint32_t type = 0;
  std::uint32_t by = 0;
  std::uint64_t count = 0;

  bool operator==(const call_shape&) const = default;
};

/// One piece on its way from one rank to another.
struct box {
  std::atomic<std::uint32_t> full;
  std::uint32_t bytes;
  call_shape shape;
  std::array<std::byte, piece_bytes> data;
};

/// What the processes of one communicator share.
struct shared_world {
  std::atomic<int> here;
  std::atomic<int> finalized;
  std::array<std::atomic<int>, most_ranks> devices;  // from 1; 0: not here yet
  std::array<std::atomic<pid_t>, most_ranks> processes;
  box boxes[2][most_ranks][most_ranks];  // of collectives, of send and receive; [from][to]
  std::atomic<int> called[2][most_ranks][most_ranks];  // 1: a receive, a send was; [from][to]
};

/// Maps the world of a name; the first rank makes it, the last to come takes the name away.
class world {
 public:
  world(const engine::nccl::unique_id& id, int rank, int ranks, int device);
  world(const world&) = delete;
  world& operator=(const world&) = delete;
  ~world();

  [[nodiscard]] bool complete() const { return memory_->here >= ranks; }
  /// Another rank with this one's device; -1: none.
  [[nodiscard]] int twin() const;
  /// A rank whose process has ended; -1: none.
  [[nodiscard]] int dead();
  [[nodiscard]] box& from_to(bool to_one, int from, int to) {
    return memory_->boxes[to_one ? 1 : 0][from][to];
  }
  /// This rank has called a send to the peer, or a receive from it.
  void note_call(bool sends, int peer) {
    memory_->called[sends ? 1 : 0][sends ? rank : peer][sends ? peer : rank] = 1;
  }
  /// Whether the peer has ever called the other half of such a send or receive.
  [[nodiscard]] bool is_met(bool sends, int peer) const {
    return memory_->called[sends ? 0 : 1][sends ? rank : peer][sends ? peer : rank] != 0;
  }
  void finalize() { ++memory_->finalized; }
  [[nodiscard]] bool all_finalized() const { return memory_->finalized >= ranks; }

  const int rank;
  const int ranks;

 private:
  std::string path_;
  shared_world* memory_ = nullptr;
  std::array<int, most_ranks> pidfds_;
};

}  // namespace troupe::tests::fake_nccl
