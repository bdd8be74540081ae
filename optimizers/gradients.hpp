#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "optimizers/optimizer.hpp"

namespace troupe::optimizers {

using gradient_list = std::vector<std::optional<at::Tensor>>;

/// For each gradient the sum of the squares of its elements, 0 where it is missing, in f64 and in
/// one order: the same bits on every CPU, for gradients in the same layouts. Infinite or NaN where
/// an element is (and for f64 beyond 1e154). The global norm is the root of all these together.
[[nodiscard]] std::vector<double> squares_of_each(const gradient_list& gradients);

/// What to multiply gradients with, so that their global norm is at most `most`. `squares`: the sum
/// of squares over all shards. Errors: handler_failed when it is infinite or NaN.
[[nodiscard]] result<double> clip_factor(double squares, double most);

/// Every gradient times `factor`. New tensors: two gradients may well be the same one.
[[nodiscard]] gradient_list scaled(const gradient_list& gradients, double factor);

/// Every element brought into [-most, most]. NaN stays. New tensors.
[[nodiscard]] gradient_list clipped(const gradient_list& gradients, double most);

/// Averages the gradients of several steps for one update. A parameter without a gradient in a step
/// counts as 0 there; without one in all of them it has none.
class gradient_accumulator {
 public:
  /// `steps`: how many are averaged, at least 1.
  explicit gradient_accumulator(std::uint32_t steps = 1) : steps_(steps) {}

  /// Adds one step's gradients, which stay as they are; the mean once `steps` have come. Errors:
  /// bad_config when their number changes between steps.
  [[nodiscard]] result<std::optional<gradient_list>> add(const gradient_list& gradients);

  /// Counts a step whose gradients are of no use: its update will not be, whatever the others
  /// bring.
  void leave_out();

 private:
  std::uint32_t steps_;
  std::uint32_t heard_ = 0;   ///< Of the steps that make an update.
  bool is_left_out_ = false;  ///< That update.
  gradient_list sum_;
  std::vector<bool> is_own_;  ///< Whether an entry of `sum_` is a tensor made here.
};

}  // namespace troupe::optimizers
