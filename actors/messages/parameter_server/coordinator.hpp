#pragma once

#include <caf/actor_control_block.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "actors/messages/parameter_server/tensors.hpp"
#include "engine/parameter_server/push.hpp"
#include "messages/base/error.hpp"
#include "messages/base/ids.hpp"

/// Between the coordinator and its shards, what a shard's own work thread tells it, and what
/// the coordinator says of itself.
namespace troupe::actors {

/// Tells a shard its place and its coordinator, whose orders it follows from then on.
struct connect_shard {
  static constexpr auto declared = travels("connect_shard");

  std::uint32_t index = 0;
  caf::strong_actor_ptr coordinator;  // a coordinator_actor
  engine::server_mode mode = engine::server_mode::synchronous;
  std::uint64_t staleness = 0;
  param_version begin = {};  // of the parameters that the shard was built with

  static void fields(auto& self, auto& f) {
    f(self.index, self.coordinator, self.mode, self.staleness, self.begin);
  }
};

/// What a shard owns.
struct shard_directory {
  static constexpr auto declared = travels("shard_directory");

  std::vector<engine::parameter_entry> parameters;

  static void fields(auto& self, auto& f) { packed_directory::fields_of(self.parameters, f); }
};

struct admit_worker {
  static constexpr auto declared = travels("admit_worker");

  engine::worker_id worker;

  static void fields(auto& self, auto& f) { f(self.worker); }
};

struct expel_worker {
  static constexpr auto declared = travels("expel_worker");

  engine::worker_id worker;

  static void fields(auto& self, auto& f) { f(self.worker); }
};

/// A shard holds its part of a push; `fault`, unless empty, is what is wrong with it.
struct staged_push {
  static constexpr auto declared = travels("staged_push");

  std::uint32_t shard = 0;
  engine::based_push what;
  errc code = errc::bad_data;
  std::string fault;

  static void fields(auto& self, auto& f) {
    f(self.shard, self.what.push.worker, self.what.push.sequence, self.what.base, self.code,
      self.fault);
  }
};

/// The coordinator's order: the mean of these pushes is the next update.
struct apply_pushes {
  static constexpr auto declared = travels("apply_pushes");

  param_version version;
  std::vector<engine::worker_id> workers;
  std::vector<std::uint64_t> sequences;
  std::vector<param_version> bases;

  static void fields(auto& self, auto& f) {
    f(self.version, self.workers, self.sequences, self.bases);
  }
};

struct refuse_push {
  static constexpr auto declared = travels("refuse_push");

  engine::push_id push;
  errc code = errc::stale;
  std::string text;

  static void fields(auto& self, auto& f) {
    f(self.push.worker, self.push.sequence, self.code, self.text);
  }
};

/// Asks for a report, which is answered once there are no more members than this: from then on
/// nothing is decided for those that were lost.
struct read_coordinator {
  static constexpr auto declared = travels("read_coordinator");

  std::uint64_t members_at_most = std::numeric_limits<std::int64_t>::max();

  static void fields(auto& self, auto& f) { f(self.members_at_most); }
};

/// How all pushes so far were decided.
struct coordinator_report {
  static constexpr auto declared = travels("coordinator_report");

  param_version version;
  std::uint64_t members = 0;
  std::uint64_t applied = 0;
  std::uint64_t refused = 0;
  std::uint64_t discarded = 0;

  static void fields(auto& self, auto& f) {
    f(self.version, self.members, self.applied, self.refused, self.discarded);
  }
};

/// What has changed since `newer_than`, as it is after update `version`.
struct fresh_batch {
  std::optional<param_version> newer_than;
  param_version version;
  engine::tensor_batch values;
};

/// An update is over, and what its pushers asked for was read: from a shard's work thread to its
/// actor, never between nodes.
struct shard_updated {
  static constexpr auto declared = stays_here;

  std::optional<error> failure;
  std::vector<fresh_batch> fresh;
};

/// Values or a piece of the state for an answer, or why there are none: as above.
struct values_ready {
  static constexpr auto declared = stays_here;

  std::uint64_t ticket = 0;
  param_version version;
  engine::tensor_batch values;
  tensor_piece state = {};
  std::optional<error> failure;
};

/// Asks a shard for its optimizer's state, from a place of the list on.
struct read_shard_state {
  static constexpr auto declared = travels("read_shard_state");

  list_place from = {};
  piece_limits most = {};

  static void fields(auto& self, auto& f) { f(self.from, self.most); }
};

/// A piece of that state (see engine::parameter_store::state), as it is after update `version`.
struct shard_state_piece {
  static constexpr auto declared = travels("shard_state_piece");

  param_version version;
  tensor_piece piece = {};

  static void fields(auto& self, auto& f) { f(self.version, self.piece); }
};

using server_coordinator_messages =
    message_list<connect_shard, shard_directory, admit_worker, expel_worker, staged_push,
                 apply_pushes, refuse_push, read_coordinator, coordinator_report, shard_updated,
                 values_ready, read_shard_state, shard_state_piece>;

}  // namespace troupe::actors
