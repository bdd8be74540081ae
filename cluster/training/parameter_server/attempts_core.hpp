#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::cluster {

/// Which losses end an attempt at a run of a parameter server, and when there have been too many.
/// Shards have the first places among the run's processes, the coordinator is in the first of them,
/// and workers have the other places.
///
/// A core: it is told what is lost and how far the run has come.
class server_attempts {
 public:
  /// Attempts in a row that end before a step is done that no attempt before has done.
  static constexpr int most_in_vain = 3;

  server_attempts(std::size_t shards, std::size_t workers) : shards_(shards), workers_(workers) {}

  /// Whether the server cannot go on without these places: a shard is among them, or all workers.
  [[nodiscard]] bool is_fatal(const std::vector<std::size_t>& lost) const;

  /// An attempt has ended. `reached`: the last step that any has done. Whether another is to begin.
  [[nodiscard]] bool next(std::uint64_t reached);

  /// Attempts that have ended since a new step was done, with the last one.
  [[nodiscard]] int in_vain() const noexcept { return in_vain_; }

 private:
  const std::size_t shards_;
  const std::size_t workers_;
  std::uint64_t reached_ = 0;
  int in_vain_ = 0;
};

}  // namespace troupe::cluster
