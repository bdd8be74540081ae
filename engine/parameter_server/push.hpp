#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "messages/base/error.hpp"
#include "messages/base/ids.hpp"

namespace troupe::engine {

/// One membership of a worker: given when it joins, never used again.
using worker_id = strong_id<struct worker_tag>;

/// One push: a worker's gradients of all its parameters, a part for each shard. Sequences count
/// from 1 without gaps, whatever becomes of the pushes.
struct push_id {
  worker_id worker;
  std::uint64_t sequence = 0;

  auto operator<=>(const push_id&) const = default;
};

/// A push and the version of the parameters that its gradients were computed with.
struct based_push {
  push_id push;
  param_version base;

  auto operator<=>(const based_push&) const = default;
};

/// One update: its number (the version it makes) and the pushes whose mean it applies, in the order
/// in which they are added up.
struct server_update {
  param_version version;
  std::vector<based_push> pushes;

  bool operator==(const server_update&) const = default;
};

enum class server_mode : std::uint8_t {
  synchronous,   ///< One update a version: the mean of every member's gradients.
  asynchronous,  ///< One update a push, if it is not too stale.
};

struct server_rules {
  server_mode mode = server_mode::synchronous;
  std::uint64_t staleness = 0;         ///< Asynchronous: updates since a push's base, at most.
  std::uint32_t shards = 1;            ///< At least 1.
  std::uint32_t expected_workers = 1;  ///< Synchronous: no update before so many have joined.
  param_version begin = {};            ///< Of the parameters as the server begins with them.
};

}  // namespace troupe::engine
