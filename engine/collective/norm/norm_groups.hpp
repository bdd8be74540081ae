#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "messages/base/ids.hpp"

namespace troupe::engine {

/// A micro-batch of a group, of one logical replica.
struct group_member {
  std::size_t logical = 0;     ///< Which of the replica's own.
  microbatch_id microbatch;    ///< Among those of the replica.
  std::uint32_t of_batch = 0;  ///< Among those of the whole batch.
  bool counts = false;         ///< Its running statistics stand for those of the group.

  bool operator==(const group_member&) const = default;
};

/// Which micro-batches of a step batch norm normalizes together where it is synchronized over
/// replicas: group i has micro-batch i of each logical replica that has so many. A replica computes
/// its members of a group in one action. A value.
class norm_groups {
 public:
  /// `shares`: micro-batches of each logical replica of all replicas; `rank`: the replica among
  /// `ranks`, which divide the logical ones evenly.
  norm_groups(std::vector<std::uint32_t> shares, std::uint32_t rank, std::uint32_t ranks)
      : shares_(std::move(shares)), rank_(rank), ranks_(ranks), own_(shares_.size() / ranks) {}

  /// Groups of which this replica has members.
  [[nodiscard]] std::uint32_t count() const { return count_of(rank_); }
  [[nodiscard]] std::uint32_t count_of(std::uint32_t rank) const;

  /// This replica's members of a group, by logical replica.
  [[nodiscard]] std::vector<group_member> members(std::uint32_t group) const;

  /// The replicas that have members of a group, rising.
  [[nodiscard]] std::vector<std::uint32_t> ranks_of(std::uint32_t group) const;

 private:
  std::vector<std::uint32_t> shares_;
  std::uint32_t rank_;
  std::uint32_t ranks_;
  std::size_t own_;  // logical replicas of each
};

}  // namespace troupe::engine
