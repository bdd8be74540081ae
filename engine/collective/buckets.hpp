#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::engine {

/// Parameters that one rank adds up for all, and that travel together.
struct bucket {
  std::uint32_t owner = 0;                   ///< The rank that adds.
  std::vector<std::size_t> parameters = {};  ///< In the order of a backward.
  std::uint64_t bytes = 0;

  bool operator==(const bucket&) const = default;
};

/// The bytes at which a bucket is full: large enough that messages cost little beside them, small
/// enough that the first leaves early.
inline constexpr std::uint64_t usual_bucket_bytes = 4 << 20;

/// Parameters at which a bucket is full, however small they are: a frame has a limit too.
inline constexpr std::size_t most_bucket_parameters = 1024;

/// Which of `owners`, at least one, owns each parameter of these bytes: the largest parameters
/// first, each to the owner that has the fewest bytes so far (Graham's rule). If one would then own
/// over 5% more than an equal share, they are packed instead, if the largest share is smaller that
/// way: the largest first, each to the first owner that has room, into as little room as bisection
/// finds (Coffman, Garey and Johnson, "An Application of Bin-Packing to Multiprocessor Scheduling",
/// 1978). The same on every rank.
[[nodiscard]] std::vector<std::uint32_t> owners_of(const std::vector<std::uint64_t>& bytes,
                                                   std::uint32_t owners);

/// All parameters in buckets, in the order in which backwards complete their gradients: the last
/// parameter first. A bucket ends before the parameter that would bring it above `most_bytes`, or
/// above most_bucket_parameters; a larger parameter has one of its own.
[[nodiscard]] std::vector<bucket> make_buckets(const std::vector<std::uint64_t>& bytes,
                                               const std::vector<std::uint32_t>& owners,
                                               std::uint64_t most_bytes = usual_bucket_bytes);

}  // namespace troupe::engine
