#pragma once

#include <caf/node_id.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "actors/interfaces.hpp"
#include "actors/messages/parameter_server/coordinator.hpp"
#include "actors/messages/parameter_server/worker.hpp"
#include "actors/parameter_server/batch_pieces.hpp"
#include "engine/model/activity.hpp"
#include "engine/parameter_server/parameter_store.hpp"
#include "engine/parameter_server/shard_core.hpp"
#include "engine/stage/work_thread.hpp"
#include "messages/base/error.hpp"
#include "messages/link/shared_memory.hpp"

/// The state of a shard's actor, for its own sources alone.
namespace troupe::actors {

/// A worker that waits for the decision on its push, and what its answer is to bring.
struct push_waiter {
  caf::typed_response_promise<gradients_pushed> answer;
  bool pull = false;
  std::optional<param_version> newer_than;
  batch_limits most;
};

/// An answer whose values are being read.
struct unanswered_pull {
  caf::typed_response_promise<parameters_pulled> answer;
  engine::worker_id worker;
  batch_limits most;
};
struct unanswered_push {
  caf::typed_response_promise<gradients_pushed> answer;
  engine::worker_id worker;
  batch_limits most;
  param_version applied;
};
struct unanswered_state {
  caf::typed_response_promise<shard_state_piece> answer;
};
using unanswered_read = std::variant<unanswered_pull, unanswered_push, unanswered_state>;

struct shard_state {
  std::string name;
  std::unique_ptr<engine::parameter_store> store;  // its tensors are the work thread's
  std::shared_ptr<messages::shared_memory> memory;
  param_version begin;                     // of the store as it was given
  std::optional<engine::shard_core> core;  // once connected
  std::uint32_t index = 0;
  coordinator_actor coordinator;
  std::optional<error> lost;  // why the coordinator is gone
  std::map<engine::push_id, engine::tensor_batch> parts;
  incoming_parts incoming;
  unfetched_values unfetched;
  std::map<engine::push_id, std::vector<push_waiter>> waiters;
  std::map<engine::worker_id, caf::node_id> pushers;  // the process of each member's first push
  std::map<std::uint64_t, unanswered_read> reading;   // by ticket
  std::uint64_t last_ticket = 0;
  std::uint64_t refusals = 0;                 // of messages that were not the coordinator's
  std::vector<fresh_batch> fresh;             // of the update that is being settled
  std::shared_ptr<engine::activity> doing;    // the work thread's
  std::unique_ptr<engine::work_thread> work;  // last: its tasks use the store
};

using shard_pointer = shard_actor::stateful_pointer<shard_state>;

/// The error with the shard's name before it.
inline error named(const shard_state& state, const error& why) {
  return error_about(state.name, why);
}

}  // namespace troupe::actors
