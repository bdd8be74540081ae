#pragma once

#include <deque>
#include <map>
#include <variant>
#include <vector>

#include "engine/parameter_server/push.hpp"

namespace troupe::engine {

/// To the coordinator: this shard has its part of a push, or has found it wrong.
struct report_staged {
  based_push what;
  std::optional<error> fault;
};
/// Add up the parts of these pushes in this order, divide by their number, do one optimizer step;
/// `updated` when that is over. Several may be under way: in order.
struct start_update {
  server_update update;
};
/// What became of a push: the version that it is part of, or why it was refused. For whoever waits.
struct settle_push {
  push_id push;
  result<param_version> outcome;
};
/// The part of a push that is kept is not needed any more.
struct forget_part {
  push_id push;
};
using shard_effect = std::variant<report_staged, start_update, settle_push, forget_part>;
using shard_effects = std::vector<shard_effect>;

/// One shard of a parameter server: who may push, which parts are here, and what becomes of them.
/// Follows the coordinator's decisions in their order. A worker has one push open at a time, so
/// parts are at most as many as members.
///
/// A core: told what happened, it returns what to do. It holds no tensors: the caller keeps a part
/// from an accepted push to its start_update or forget_part.
class shard_core {
 public:
  explicit shard_core(const server_rules& rules)
      : rules_(rules), decided_(rules.begin), version_(rules.begin) {}

  // From the coordinator. Errors: bad_frame for what it cannot have decided; the shard is then of
  // no use.

  void admit(worker_id worker) { members_.try_emplace(worker); }
  /// Forgets what the worker has pushed and the coordinator has not ordered; what was ordered goes
  /// on.
  [[nodiscard]] shard_effects expel(worker_id worker);
  [[nodiscard]] result<shard_effects> apply(const server_update& update);
  [[nodiscard]] shard_effects refuse(const push_id& push, const error& why);

  /// From a worker. A repeated push is settled as the first was, and not applied again. Errors:
  /// not_admitted for no member; stale, bad_frame for a sequence before or after the next.
  [[nodiscard]] result<shard_effects> push(const based_push& what,
                                           const std::optional<error>& fault = {});

  /// The oldest update under way is over. After a failure the shard refuses everything.
  [[nodiscard]] shard_effects updated(const result<void>& outcome);

  /// Whether the part of this push was kept by `push` and not yet handed over or forgotten.
  [[nodiscard]] bool keeps(const push_id& push) const;

  [[nodiscard]] bool has_member(worker_id worker) const { return members_.contains(worker); }

  /// Updates done, and those in what the server began with.
  [[nodiscard]] param_version version() const noexcept { return version_; }
  /// Why it is of no use any more.
  [[nodiscard]] const std::optional<error>& failure() const noexcept { return failure_; }

 private:
  enum class part : std::uint8_t { none, staged, applying };
  struct member {
    std::uint64_t last = 0;  // sequence of the newest push
    part state = part::none;
    result<param_version> outcome = param_version{};  // of `last`, where the state is none
  };

  void settle(const push_id& push, const result<param_version>& outcome, shard_effects& effects);
  [[nodiscard]] shard_effects fail_all(const error& why);

  const server_rules rules_;
  std::map<worker_id, member> members_;
  param_version decided_;  // by the coordinator
  param_version version_;
  std::deque<server_update> under_way_;
  std::optional<error> failure_;
};

}  // namespace troupe::engine
