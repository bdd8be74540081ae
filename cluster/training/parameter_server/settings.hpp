#pragma once

#include <cstdint>

#include "cluster/config/program_info.hpp"
#include "engine/parameter_server/push.hpp"

namespace troupe::cluster {

/// TOML table [server].
struct server_settings {
  std::uint32_t workers = 2;
  std::uint32_t shards = 2;
  engine::server_mode mode = engine::server_mode::synchronous;
  std::uint64_t staleness = 4;  ///< Asynchronous: see engine::server_rules.
  bool bf16_gradients = false;
  int threads_per_worker = 0;  ///< 0: the cores divided by the workers, at least 1.
  int threads_per_shard = 1;

  bool operator==(const server_settings&) const = default;
};

/// A program with the table [server] before its own, its checks, and no pipeline's options. The
/// settings are among a configuration's own.
[[nodiscard]] program_info with_server(program_info program);

}  // namespace troupe::cluster
