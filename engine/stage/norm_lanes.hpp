#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/autograd/norm_sums.hpp"
#include "engine/collective/norm/norm_parts.hpp"
#include "engine/stage/work_thread.hpp"

namespace troupe::engine {

/// The sum over all replicas, of which this replica's is given; waits for the others, or throws.
using norm_exchange = std::function<norm_part(norm_sum what, norm_part own)>;

/// One micro-batch's computation, in a lane.
struct lane_task {
  std::size_t logical = 0;  ///< Its place in the tree of the replica's own parts.
  bool counts = false;      ///< See norm_sums.
  std::function<void()> run;
};

/// Computes several micro-batches that batch norms normalize together: each in a lane, a thread of
/// its own, of which one runs at a time. A lane that comes to a batch norm's sum gives its part and
/// lets the next one run; the last to come sums all parts and the lanes go on in turn. So each
/// micro-batch is computed as if it were alone, to the bit, except for these sums. Used by one
/// thread.
class norm_lanes {
 public:
  /// `most`: micro-batches at once, at least 1, and places of the tree. Lanes but the first,
  /// which is the calling thread, have `intra_op_threads`. Throws std::system_error where no thread
  /// can be started.
  norm_lanes(std::string name, std::size_t most, int intra_op_threads);
  norm_lanes(const norm_lanes&) = delete;
  norm_lanes& operator=(const norm_lanes&) = delete;
  ~norm_lanes();

  /// Runs all tasks to their end, rising by `logical`. What the first one throws passes through,
  /// after all have ended: others that come to a sum after that throw too.
  void run(const std::vector<lane_task>& tasks, const norm_exchange& exchange);

 private:
  class lane;

  void run_lane(std::size_t index);
  [[nodiscard]] norm_part sum(std::size_t index, norm_sum what, norm_part own);
  void pass_on(std::size_t index);
  void complete(norm_sum what, std::unique_lock<std::mutex>& held);
  [[nodiscard]] std::exception_ptr mismatch() const;

  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::vector<lane_task>* tasks_ = nullptr;
  const norm_exchange* exchange_ = nullptr;
  std::size_t turn_ = 0;                         // the lane that runs
  std::size_t given_ = 0;                        // parts of the sum that is being made
  std::size_t ended_ = 0;                        // lanes
  std::size_t made_ = 0;                         // sums so far
  std::vector<bool> over_;                       // by lane
  std::vector<std::optional<norm_part>> parts_;  // by logical replica
  norm_part sum_;
  std::exception_ptr failure_;
  std::vector<std::unique_ptr<work_thread>> others_;  // last: their tasks use the rest
};

}  // namespace troupe::engine
