#pragma once

#include <ATen/core/Tensor.h>

#include <caf/actor_control_block.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "actors/messages/parameter_server/tensors.hpp"
#include "engine/parameter_server/push.hpp"
#include "optimizers/schedule.hpp"

/// How a parameter server and its workers are built on their nodes.
namespace troupe::actors {

/// How a shard's learning rate moves over so many updates.
struct rate_plan {
  optimizers::rate_schedule schedule;
  std::uint64_t updates = 0;

  static void fields(auto& self, auto& f) {
    auto& [curve, warmup, end, step_every, step_factor, power, peak, start] = self.schedule;
    f(curve, warmup, end, step_every, step_factor, power, peak, start, self.updates);
  }
};

/// The first values of a shard's parameters (see part_name) in their order, and after them the
/// optimizer's state where there is some (see engine::parameter_store::state), piece after piece.
/// Before its build_shard; a first piece drops those before it.
struct shard_values {
  static constexpr auto declared = travels("shard_values");

  std::string name;  // the shard's
  tensor_piece piece = {};

  static void fields(auto& self, auto& f) { f(self.name, self.piece); }
};

/// Makes a shard on the node that gets it, of the values that came before.
struct build_shard {
  static constexpr auto declared = travels("build_shard");

  std::string name;
  std::vector<engine::parameter_entry> parameters;
  std::string optimizer;
  std::map<std::string, double> optimizer_options;
  rate_plan rate = {};
  std::int32_t threads = 1;
  param_version begin = {};  // updates that are in the values

  static void fields(auto& self, auto& f) {
    f(self.name, self.optimizer, self.optimizer_options, self.rate, self.threads, self.begin);
    packed_directory::fields_of(self.parameters, f);
  }
};

struct shard_built {
  static constexpr auto declared = travels("shard_built");

  caf::strong_actor_ptr shard;  // a shard_actor

  static void fields(auto& self, auto& f) { f(self.shard); }
};

/// Makes the coordinator of these shards (shard_actors), wherever they live.
struct open_coordinator {
  static constexpr auto declared = travels("open_coordinator");

  std::vector<caf::strong_actor_ptr> shards;
  engine::server_mode mode = engine::server_mode::synchronous;
  std::uint64_t staleness = 0;
  std::uint32_t expected_workers = 1;
  param_version begin = {};  // of the parameters that the shards were built with

  static void fields(auto& self, auto& f) {
    f(self.shards, self.mode, self.staleness, self.expected_workers, self.begin);
  }
};

struct coordinator_opened {
  static constexpr auto declared = travels("coordinator_opened");

  caf::strong_actor_ptr coordinator;  // a coordinator_actor

  static void fields(auto& self, auto& f) { f(self.coordinator); }
};

/// Makes a worker that joins the parameter server.
struct build_worker {
  static constexpr auto declared = travels("build_worker");

  std::uint32_t rank = 0;
  caf::strong_actor_ptr coordinator;  // a coordinator_actor
  bool bf16_gradients = false;
  std::string model;
  std::string data;  // a source that the node can open
  std::int64_t image_size = 0;
  std::int64_t classes = 0;  // 0: as the data has
  std::uint64_t seed = 0;
  std::string loss;
  bool strict = false;
  std::int32_t threads = 1;
  std::vector<std::string> metrics = {};  // of evaluations, names in the node's registry

  static void fields(auto& self, auto& f) {
    f(self.rank, self.coordinator, self.bf16_gradients, self.model, self.data, self.image_size,
      self.classes, self.seed, self.loss, self.strict, self.threads, self.metrics);
  }
};

struct worker_built {
  static constexpr auto declared = travels("worker_built");

  caf::strong_actor_ptr worker;  // a worker_actor

  static void fields(auto& self, auto& f) { f(self.worker); }
};

/// Ends the shards, coordinators and workers that were built on the node.
struct drop_server {
  static constexpr auto declared = travels("drop_server");
};

using server_host_messages =
    message_list<shard_values, build_shard, shard_built, open_coordinator, coordinator_opened,
                 build_worker, worker_built, drop_server>;

}  // namespace troupe::actors
