#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "messages/base/error.hpp"
#include "messages/base/named_values.hpp"

namespace troupe::engine {

/// What metrics are computed from: a micro-batch of an evaluation, where the last layer is.
struct evaluated_batch {
  at::Tensor outputs;  ///< Of the last layer: for images [N, K], for sequences [N, T, K].
  at::Tensor labels;   ///< [N] i64, for sequences [N, T].
  at::Tensor loss;     ///< [] f32: the run's loss, a mean over the labels.
};

/// A number that evaluations report: a mean over the labels of the test data.
struct metric {
  /// Its sum over the labels of a micro-batch: one number of any dtype, on the device of the
  /// outputs, which nothing has to wait for. Sums are added in f64, those of a logical replica in
  /// the order of micro-batches, and those of all in a fixed tree: the bits are the same whichever
  /// processes compute them. Autograd records nothing. Called by one thread of each process at a
  /// time; torch's exceptions pass through.
  std::function<at::Tensor(const evaluated_batch& of)> sum;
  bool is_share = false;  ///< Between 0 and 1: shown in percent.
  std::string key = {};   ///< In the JSON lines, which have "eval_step" already; empty: its name.
};

/// The metrics that evaluations report, in this order.
using metric_registry = named_values<metric>;

/// accuracy: the share of labels at which the outputs have their largest entry; loss: that of the
/// run, "eval_loss" in the JSON lines.
[[nodiscard]] metric_registry built_in_metrics();

[[nodiscard]] std::vector<std::string> names_of(const metric_registry& metrics);

/// Those of these names, in their order. Errors: bad_config listing the known names.
[[nodiscard]] result<metric_registry> find_metrics(const metric_registry& known,
                                                   const std::vector<std::string>& names);

/// Each metric's sum over a micro-batch. A metric that does not give one number is a
/// std::invalid_argument with its name.
[[nodiscard]] std::vector<at::Tensor> sums_of(const metric_registry& metrics,
                                              const evaluated_batch& of);

/// Adds sums to sums, metric by metric; what is missing counts as 0.
void add_sums(std::vector<double>& into, const std::vector<double>& more);

}  // namespace troupe::engine
