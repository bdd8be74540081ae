#pragma once

#include <map>
#include <set>
#include <variant>
#include <vector>

#include "engine/parameter_server/push.hpp"

namespace troupe::engine {

// What the coordinator wants done. All but `welcome` go to every shard, in this order.

struct admit_member {
  worker_id worker;
};
struct expel_member {
  worker_id worker;
};
struct refuse_part {
  push_id push;
  error why;
};
/// Every shard has admitted the worker: it may push.
struct welcome_member {
  worker_id worker;
};
using coordinator_effect =
    std::variant<admit_member, expel_member, server_update, refuse_part, welcome_member>;
using coordinator_effects = std::vector<coordinator_effect>;

/// How many pushes were decided, and how. A push of a worker that left before is discarded.
struct coordinator_totals {
  std::uint64_t applied = 0;
  std::uint64_t refused = 0;
  std::uint64_t discarded = 0;

  bool operator==(const coordinator_totals&) const = default;
};

/// The one place where a parameter server's pushes are decided. Shards keep the parts of a push
/// until all of them have theirs; then the coordinator gives it a place in the order of updates,
/// which all shards follow, or refuses it at all of them. So a push counts everywhere, once, or
/// nowhere.
///
/// A core: told what happened, it returns what to do.
class coordinator_core {
 public:
  static constexpr std::size_t max_members = 4096;

  explicit coordinator_core(const server_rules& rules) : rules_(rules), version_(rules.begin) {}

  /// A worker joins. `rank`: its place in the order of adding up. Counts as a member at once: a
  /// synchronous update waits for it. Errors: bad_config for a rank that a member has,
  /// or too many members.
  [[nodiscard]] result<worker_id> join(std::uint32_t rank, coordinator_effects& effects);

  /// A shard has admitted a worker; said once by each, and more often changes nothing.
  [[nodiscard]] coordinator_effects admitted(worker_id worker);

  /// A worker has left, or is lost. Pushes of it that were not decided are discarded, and an update
  /// that waited for it alone goes on. Unknown: nothing happens.
  [[nodiscard]] coordinator_effects leave(worker_id worker);

  /// A shard holds its part of a push, or has found it wrong (`fault`). Repeated reports, and those
  /// of workers that have left, change nothing.
  [[nodiscard]] coordinator_effects staged(std::uint32_t shard, const based_push& what,
                                           const std::optional<error>& fault = {});

  /// Updates decided, and those in what the server began with.
  [[nodiscard]] param_version version() const noexcept { return version_; }
  [[nodiscard]] const coordinator_totals& totals() const noexcept { return totals_; }
  [[nodiscard]] std::size_t members() const noexcept { return members_.size(); }

 private:
  struct open_push {
    based_push what;
    std::vector<bool> staged;  // by shard
    std::uint32_t missing = 0;
    std::optional<error> fault;
  };
  struct member {
    std::uint32_t rank = 0;
    std::uint32_t not_admitted_by = 0;  // shards
    std::uint64_t decided = 0;          // last sequence
    std::optional<open_push> push = {};
  };

  [[nodiscard]] coordinator_effects decide(member& of);
  [[nodiscard]] std::optional<error> reason_to_refuse(const open_push& push) const;
  [[nodiscard]] coordinator_effects close_round();
  server_update next_update(const std::vector<member*>& of);

  const server_rules rules_;
  std::map<worker_id, member> members_;
  std::uint64_t last_worker_ = 0;
  std::set<std::uint32_t> ranks_;  // of the first expected, be they here or not
  param_version version_;
  coordinator_totals totals_;
};

}  // namespace troupe::engine
