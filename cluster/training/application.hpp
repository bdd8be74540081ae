#pragma once

#include <ATen/core/Tensor.h>

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

/// What one training program has of its own; the rest is shared (see `main`). Functions that are
/// left out do nothing.
struct application {
  /// Its name, its models and whatever else can be named, its own options.
  cluster::program_info info;
  /// Options of the configured model, for its builder.
  std::function<std::map<std::string, double>(const cluster::trainer_config&)> model_options = {};
  /// Changes how the data are opened, where the common options do not say it all.
  std::function<void(const cluster::trainer_config&, engine::dataset_options&)> adjust_data = {};
  /// Whether the model can be trained on these data. Errors: bad_config.
  std::function<result<void>(const cluster::trainer_config&, const engine::dataset&)> check_data =
      {};
  /// Fewest samples of a micro-batch that the model can be trained on; left out: 1.
  std::function<std::int64_t(const std::vector<std::int64_t>& sample_shape)> least_samples = {};
  /// A line about an evaluation, beside its accuracy and loss.
  std::function<std::string(const cluster::evaluation_report&)> describe = {};
  /// What a trained model gives for inputs [n, ...]: they go through the stages. Errors: peer_lost,
  /// handler_failed.
  using predictor = std::function<result<at::Tensor>(const at::Tensor& inputs)>;
  /// What to show of a trained model at the end of a complete run.
  std::function<result<std::string>(const predictor&, const cluster::trainer_config&)> show = {};
};

/// A program's main function: reads its command line, and trains the model as a pipeline of stages,
/// serves as a stage process of such a run (which is this program again, started with --join), or
/// talks. Returns the exit code: 0; 1 when something went wrong while it ran; 2 when what the user
/// gave cannot work; 3 when the weights or the optimizers' state had to be saved elsewhere, 4 when
/// one of them could not be saved; 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
[[nodiscard]] int main(int argc, const char* const* argv, const application& program);

}  // namespace troupe
