#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "actors/pipeline/host_actor.hpp"
#include "actors/pipeline/trainer.hpp"
#include "cluster/config/command_line.hpp"
#include "cluster/config/trainer_config.hpp"
#include "engine/data/dataset.hpp"
#include "messages/base/error.hpp"

namespace troupe::apps {

/// What one training program has of its own; the rest is shared (see run_program). Functions that
/// are left out do nothing.
struct application {
  cluster::program_info info;
  /// What its processes can build, the trainer and the workers alike.
  actors::model_registry models;
  /// Options of the configured model, for its builder.
  std::function<std::map<std::string, double>(const cluster::trainer_config&)> model_options;
  /// Whether the model can be trained on these data. Errors: bad_config.
  std::function<result<void>(const cluster::trainer_config&, const engine::dataset&)> check_data;
  /// Fewest samples of a micro-batch that the model can be trained on; left out: 1.
  std::function<std::int64_t(const std::vector<std::int64_t>& sample_shape)> least_samples;
  /// A line about an evaluation, beside its accuracy and loss.
  std::function<std::string(const actors::evaluation&)> judge;
  /// What to show of a trained model, in one process, at the end of a complete run.
  std::function<std::string(const engine::model&, const cluster::trainer_config&)> show;
};

/// A program's main function: reads its command line, and trains, serves as a worker of such a
/// run, or talks. Returns the exit code: 0; 1 when something went wrong while it ran; 2 when what
/// the user gave cannot work; 3 when the weights or the optimizers' state had to be saved
/// elsewhere, 4 when one of them could not be saved; 130 after Ctrl-C, 143 after SIGTERM, 129 after
/// SIGHUP.
[[nodiscard]] int run_program(const application& program, int argc, const char* const* argv);

}  // namespace troupe::apps
