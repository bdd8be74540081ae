#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/stage/stage_module.hpp"
#include "engine/verify/reference.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// One training step of a whole model as plain autograd in one process does it, to the bit
/// (tests/parity/one_piece.hpp), with one slice of the model in memory at a time: first all slices
/// forward, of which only what crosses the cuts is kept, then from the last slice to the first each
/// forward again and backward. Used by one thread; torch's exceptions pass through.
class sliced_step {
 public:
  /// Makes a slice as it is before the step; asked for once or twice each.
  using slice_source = std::function<result<model>(std::size_t slice)>;

  struct terms {
    stage_options how = {};  ///< Its place in a pipeline does not count, nor `recompute`.
    std::uint64_t step = 0;
    std::vector<batch> microbatches = {};
    double loss_scale = 1;
    /// Of the whole model; those between slices are summed at the end.
    std::vector<weight_tie> ties_between = {};
  };

  sliced_step(std::size_t slices, slice_source source, terms of);

  /// Before all else. Errors: those of the source.
  [[nodiscard]] result<void> forward();

  /// The slices from the last to the first, each once: its gradients but those of ties, and its
  /// buffers.
  [[nodiscard]] result<step_result> backward(std::size_t slice);

  /// After all slices: the gradients of weights that are tied between slices.
  [[nodiscard]] std::vector<named_tensor> tied_gradients();

  /// Mean over the batch; after the last slice's backward.
  [[nodiscard]] double loss() const noexcept { return loss_; }

 private:
  [[nodiscard]] at::Tensor run(const model& layers, std::size_t microbatch,
                               const at::Tensor& input);
  [[nodiscard]] at::Tensor input_of(std::size_t slice, std::size_t microbatch) const;
  [[nodiscard]] at::Tensor loss_of(const at::Tensor& output, std::size_t microbatch);
  /// Of the slice's own parameters; leaves those to its input for the slice before.
  [[nodiscard]] step_gradients sum_gradients(const model& layers,
                                             const std::vector<named_tensor>& own,
                                             std::size_t slice);
  void unscale_all(step_gradients& gradients) const;

  std::size_t slices_;
  slice_source source_;
  terms terms_;
  double samples_ = 0;
  double loss_ = 0;
  std::vector<std::vector<at::Tensor>> inputs_;  // [slice][micro-batch]: what crosses its first cut
  std::vector<at::Tensor> gradients_;            // [micro-batch]: of the last cut gone through
  std::map<std::string, std::optional<at::Tensor>> tied_;
};

}  // namespace troupe::engine
