#pragma once

#include <caf/actor_control_block.hpp>
#include <cstdint>
#include <optional>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "actors/messages/parameter_server/tensors.hpp"
#include "engine/parameter_server/push.hpp"
#include "messages/base/ids.hpp"

/// Between a worker and the coordinator and shards of its parameter server.
namespace troupe::actors {

/// A worker wants in. `presence`: an actor of its process that lives as long as it is a member.
struct join_server {
  static constexpr auto declared = travels("join_server");

  std::uint32_t rank = 0;  // its place in the order of adding up; unique among members
  caf::strong_actor_ptr presence;

  static void fields(auto& self, auto& f) { f(self.rank, self.presence); }
};

struct shard_entry {
  caf::strong_actor_ptr shard;  // a shard_actor
  std::vector<engine::parameter_entry> parameters;

  static void fields(auto& self, auto& f) {
    f(self.shard);
    packed_directory::fields_of(self.parameters, f);
  }
};

struct server_joined {
  static constexpr auto declared = travels("server_joined");

  engine::worker_id worker;
  std::vector<shard_entry> shards;

  static void fields(auto& self, auto& f) { f(self.worker, self.shards); }
};

struct leave_server {
  static constexpr auto declared = travels("leave_server");

  engine::worker_id worker;

  static void fields(auto& self, auto& f) { f(self.worker); }
};

/// A worker's gradients of one shard's parameters, perhaps of none: every push has a part at every
/// shard. Parameters that are left out had no gradient. A part that does not fit into one message
/// comes in pieces, in order: the shard keeps them, answers each with an empty `gradients_pushed`,
/// and makes nothing of them before the last.
struct push_gradients {
  static constexpr auto declared = travels("push_gradients");

  static constexpr bool tensors_are_only_read = true;
  engine::based_push what;  // base: the oldest version among what they were computed with
  engine::tensor_batch gradients;
  bool pull = false;                             // the answer is to bring values
  std::optional<param_version> newer_than = {};  // what has changed since; nullopt: all
  batch_limits most = {};                        // of the answer
  std::uint32_t piece = 0;                       // its number
  bool last = true;

  static void fields(auto& self, auto& f) {
    f(self.what.push.worker, self.what.push.sequence, self.what.base, self.gradients, self.pull,
      self.newer_than, self.most, self.piece, self.last);
  }
};

/// The push is part of update `applied`. With `more`, `values` are the first piece of what was
/// asked for, and the shard keeps the rest for this worker: see pull_parameters.
struct gradients_pushed {
  static constexpr auto declared = travels("gradients_pushed");

  static constexpr bool tensors_are_only_read = true;
  param_version applied;
  param_version version;  // of `values`
  engine::tensor_batch values;
  bool more = false;

  static void fields(auto& self, auto& f) { f(self.applied, self.version, self.values, self.more); }
};

struct pull_parameters {
  static constexpr auto declared = travels("pull_parameters");

  std::vector<std::uint32_t> wanted;        // empty: all
  std::optional<param_version> newer_than;  // what has changed since; nullopt: whether or not
  engine::worker_id worker = {};            // a member, where the answer may be in pieces
  batch_limits most = {};
  std::uint32_t piece = 0;  // from 1: of the answer that the worker got last, and nothing else

  static void fields(auto& self, auto& f) {
    f(self.wanted, self.newer_than, self.worker, self.most, self.piece);
  }
};

/// What was asked for, as it is after update `version`; with `more`, a piece of it.
struct parameters_pulled {
  static constexpr auto declared = travels("parameters_pulled");

  static constexpr bool tensors_are_only_read = true;
  param_version version;
  engine::tensor_batch values;
  bool more = false;

  static void fields(auto& self, auto& f) { f(self.version, self.values, self.more); }
};

using server_worker_messages =
    message_list<join_server, server_joined, leave_server, push_gradients, gradients_pushed,
                 pull_parameters, parameters_pulled>;

}  // namespace troupe::actors
