#pragma once

#include <cstdint>
#include <vector>

#include "optimizers/optimizer.hpp"

namespace troupe::optimizers {

/// For each gradient the sum of the squares of its elements, 0 where it is missing, in f64 and in
/// one order: the same bits on every CPU, for gradients in the same layouts. Infinite or NaN where
/// an element is (and for f64 beyond 1e154). The global norm is the root of all these together.
[[nodiscard]] std::vector<double> squares_of_each(const gradient_list& gradients);

/// Every gradient times `factor`. New tensors: two gradients may well be the same one.
[[nodiscard]] gradient_list scaled(const gradient_list& gradients, double factor);

/// The sums of squares of gradients on one device, 0 where there is none, without waiting for it:
/// one number a gradient, rounded otherwise than `squares_of_each`. [n] f64 there
[[nodiscard]] at::Tensor squares_on_device(const gradient_list& gradients);

/// Every element brought into [-most, most]. NaN stays. New tensors.
[[nodiscard]] gradient_list clipped(const gradient_list& gradients, double most);

/// Averages the gradients of several steps. A parameter without a gradient in a step counts as 0
/// there; without one in all of them it has none.
class gradient_accumulator {
 public:
  /// Adds one step's gradients, which stay as they are. Errors: bad_config when their number
  /// changes between steps.
  [[nodiscard]] result<void> add(const gradient_list& gradients);

  /// The mean of what was added, at least one step's; of one step its own gradients. Empties it.
  [[nodiscard]] gradient_list take_mean();

  /// Forgets what was added.
  void clear();

 private:
  std::uint32_t steps_ = 0;
  gradient_list sum_;
  std::vector<bool> is_own_;  ///< Whether an entry of `sum_` is a tensor made here.
};

}  // namespace troupe::optimizers
