#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/parameter_server/host.hpp"
#include "cluster/config/trainer_config.hpp"
#include "cluster/training/parameter_server/application.hpp"
#include "cluster/training/parameter_server/driving/driver.hpp"
#include "cluster/training/parameter_server/settings.hpp"
#include "cluster/training/saving/checkpoint.hpp"
#include "cluster/training/saving/data_record.hpp"
#include "engine/model/layer.hpp"
#include "engine/parameter_server/parts.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a parameter server starts from: tensors of files, or if there are none the values that the
/// model is made with.
struct server_start {
  std::uint64_t steps = 0;  ///< Steps that are in it.
  std::optional<checkpoint> file = {};
};

/// What is known of a run before any process starts.
struct prepared_server {
  server_settings server;
  actors::build_worker worker;  // the order for one, without rank, coordinator and metrics
  std::shared_ptr<const engine::dataset> data;
  data_record of_data;   // for its checkpoints
  engine::model layers;  // as the seed makes them
  std::vector<std::string> by_rows;
  drive_plan plan;
  std::uint64_t steps_per_epoch = 1;
  server_start begin;
  bool is_complete = false;  // a checkpoint has all of its steps
};

/// Intra-op threads of each worker.
[[nodiscard]] int threads_of_worker(const server_settings& server) noexcept;

/// What the shards own together, with the values that the model is made with.
[[nodiscard]] std::vector<engine::owned_parameter> first_parameters(const prepared_server& run);

/// Settings of the table [server] that determine the steps: see checkpointed_run.
[[nodiscard]] std::map<std::string, double> server_settings_of_steps(const server_settings& server);

/// Errors: bad_config, bad_data.
[[nodiscard]] result<prepared_server> prepare(const server_application& program,
                                              const trainer_config& config);

}  // namespace troupe::cluster
