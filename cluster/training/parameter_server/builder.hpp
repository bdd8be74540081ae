#pragma once

#include <cstddef>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/parameter_server/host.hpp"
#include "cluster/config/config_tables.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/training/parameter_server/driving/server_state.hpp"
#include "cluster/training/parameter_server/prepare.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// A parameter server and its workers.
struct built_server {
  std::vector<actors::shard_actor> shards;
  std::vector<shard_part> parts;  ///< Of each shard; the values are those it began with.
  actors::coordinator_actor coordinator;
  std::vector<actors::worker_actor> workers;
};

/// Builds a parameter server and its workers on the processes of a group, shards first.
class server_builder {
 public:
  /// Everything outlives it.
  server_builder(node_group& group, actors::requester& ask, const optimizer_config& optimizer,
                 const prepared_server& run)
      : group_(group), ask_(ask), optimizer_(optimizer), run_(run) {}

  /// Errors: bad_config, bad_data; peer_lost.
  [[nodiscard]] result<built_server> build(const server_start& from);

 private:
  [[nodiscard]] actors::server_host_actor host(std::size_t i) const;
  [[nodiscard]] result<std::vector<shard_part>> cut(const server_start& from) const;
  [[nodiscard]] result<void> build_shards(built_server& into, const server_start& from);
  [[nodiscard]] result<void> give_values(std::size_t number, const built_server& of,
                                         const server_start& from);
  [[nodiscard]] actors::build_shard shard_order(std::size_t number, const shard_part& part,
                                                const server_start& from) const;
  [[nodiscard]] result<void> build_coordinator(built_server& into, const server_start& from);
  [[nodiscard]] result<void> build_workers(built_server& into, const server_start& from);
  [[nodiscard]] result<void> give_buffers(std::size_t worker, const actors::worker_actor& to,
                                          const checkpoint& from);

  node_group& group_;
  actors::requester& ask_;
  const optimizer_config& optimizer_;
  const prepared_server& run_;
};

}  // namespace troupe::cluster
