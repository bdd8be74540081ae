#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cluster/config/config_tables.hpp"
#include "cluster/config/own_settings.hpp"
#include "cluster/config/setting_places.hpp"

namespace troupe::cluster {

/// Everything that a user decides about one training run, checked. A value type; as constructed it
/// holds the defaults. `read_command_line` makes one from flags and a file.
struct trainer_config {
  pipeline_config pipeline;
  model_config model;
  optimizer_config optimizer;
  data_config data;
  train_config train;
  checkpoint_config checkpoint;
  link_config link;
  observe_config observe;
  cluster_config cluster;                                ///< Tables [cluster] and [[node]].
  own_settings own;                                      ///< Of the program's own tables.
  std::vector<std::filesystem::path> config_files = {};  ///< What --config named, in its order.
  setting_places places = {};                            ///< For errors.
  std::vector<std::string> command = {};                 ///< With all words; empty: not known.
  int keeper_socket = -1;     ///< To the process that outlives the trainer (see restarts); or none.
  std::uint32_t restart = 0;  ///< Restarts of the trainer so far; 0: it is the run's first.
  bool json_is_begun = false;  ///< A trainer before this one began the file of observe.json.

  bool operator==(const trainer_config&) const = default;
};

}  // namespace troupe::cluster
