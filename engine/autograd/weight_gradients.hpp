#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace troupe::engine {

/// The gradient of one weight, left for later. Owns the activations it needs.
struct weight_task {
  at::Tensor weight;  ///< The parameter itself.
  /// Computes it; called without grad mode, perhaps again, and by two threads at once.
  std::function<at::Tensor()> gradient;
  /// Adds it to a sum that has the weight's shape: the bits of adding what `gradient` computes, in
  /// fewer passes over memory. Called in the same way, by one thread. Empty: there is no such way.
  std::function<void(at::Tensor& sum)> add_to = {};
};

/// Of a gradient that `compute` gives in the arithmetic's type, perhaps 16 bits: in the weight's
/// type it is cast, and to a sum it is added by `add_in_place`.
[[nodiscard]] weight_task cast_when_added(const at::Tensor& weight,
                                          std::function<at::Tensor()> compute);

/// While one lives, layers that can split their backward (see `convolve`) compute only the gradient
/// of their input on this thread and leave the gradient of their weight here, so that the input
/// gradient can travel on before the weights' are known (Qi et al., "Zero Bubble Pipeline
/// Parallelism", 2023). What a task computes is, to the bit, what the unsplit backward would have.
/// One at a time on a thread.
class weight_gradient_collector {
 public:
  weight_gradient_collector();
  weight_gradient_collector(const weight_gradient_collector&) = delete;
  weight_gradient_collector& operator=(const weight_gradient_collector&) = delete;
  ~weight_gradient_collector();

  /// The tasks so far, in the order of the backward.
  [[nodiscard]] std::vector<weight_task> take() { return std::move(tasks_); }

  /// For layers: the one that lives on this thread, or null.
  [[nodiscard]] static weight_gradient_collector* current();
  void add(weight_task task) { tasks_.push_back(std::move(task)); }

 private:
  std::vector<weight_task> tasks_;
};

}  // namespace troupe::engine
