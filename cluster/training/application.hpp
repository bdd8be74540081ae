#pragma once

#include <ATen/core/Tensor.h>

#include <caf/fwd.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cluster/config/program_info.hpp"
#include "cluster/config/trainer_config.hpp"
#include "cluster/observe/report.hpp"
#include "engine/data/dataset.hpp"
#include "messages/base/error.hpp"

namespace troupe {

/// The nodes of a run, for a trainer that speaks with actors of the program's own there.
struct joined_nodes {
  caf::actor_system& system;       ///< For actors::requester.
  std::vector<std::string> names;  ///< "stage-0", ..
  /// The actor of registries::own_actors on a node. Errors: as actors::node::find.
  std::function<result<caf::strong_actor_ptr>(const std::string& node, const std::string& name)>
      find;
};

/// What is specific to one training program; the rest is shared (see `main`). Functions that are
/// left out do nothing.
struct application {
  /// Its name, its models and everything else that can be named, and its own options.
  cluster::program_info info;
  /// Options of the configured model, for the model's builder.
  std::function<std::map<std::string, double>(const cluster::trainer_config&)> model_options = {};
  /// Changes how the data is opened, if the common options do not suffice.
  std::function<void(const cluster::trainer_config&, engine::dataset_options&)> adjust_data = {};
  /// Whether the model can be trained on this data. Errors: bad_config.
  std::function<result<void>(const cluster::trainer_config&, const engine::dataset&)> check_data =
      {};
  /// Minimum number of samples in a micro-batch that the model can be trained on; left out: 1.
  std::function<std::int64_t(const std::vector<std::int64_t>& sample_shape)> least_samples = {};
  /// An additional line about an evaluation, beside its accuracy and loss.
  std::function<std::string(const cluster::evaluation_report&)> describe = {};
  /// Returns a trained model's outputs for inputs [n, ...], which pass through the stages. Errors:
  /// peer_lost, handler_failed.
  using predictor = std::function<result<at::Tensor>(const at::Tensor& inputs)>;
  /// Returns a text about the trained model to show at the end of a complete run.
  std::function<result<std::string>(const predictor&, const cluster::trainer_config&)> show = {};
  /// Returns a text to show at the end of a complete run, of what the program's own actors on the
  /// run's nodes answer. Errors as of `show`.
  std::function<result<std::string>(const joined_nodes&)> ask_nodes = {};
};

/// A program's main function: reads its command line, and trains the model as a pipeline of stages,
/// serves as a stage process of such a run (which is this program again, started with --join), or
/// prints what was asked for. Returns the exit code: 0; 1 if something went wrong during the run; 2
/// if the user's input cannot work; 3 if the weights or the optimizers' state had to be saved
/// elsewhere, 4 if one of them could not be saved; 130 after Ctrl-C, 143 after SIGTERM, 129 after
/// SIGHUP.
[[nodiscard]] int main(int argc, const char* const* argv, const application& program);

}  // namespace troupe
