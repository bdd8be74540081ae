#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/partition/planner.hpp"
#include "engine/partition/stage_memory.hpp"

namespace troupe::engine {

/// What slices and stages cost in a step that follows a plan, wherever the model is cut. Sums over
/// layers are made once, so any range of layers is looked up.
class stage_costs {
 public:
  /// `at`: the layers at the step's size of micro-batch. `how` outlives it.
  stage_costs(model_profile at, const planning& how, const plan& steps);

  [[nodiscard]] std::size_t layers() const noexcept { return at_.layers.size(); }
  [[nodiscard]] const model_layout& layout() const noexcept { return layout_; }

  /// A micro-batch through the slice at this virtual stage, with sending to other stages.
  [[nodiscard]] slice_cost seconds(std::uint32_t virtual_stage, layer_range slice) const;
  [[nodiscard]] double update_s(layer_range slice) const {
    return sums_[slice.last].update_s - sums_[slice.first].update_s;
  }
  /// Of a micro-batch that crosses the network into `virtual_stage`, or out of it again backward.
  [[nodiscard]] double transfer_s(std::uint32_t virtual_stage, std::size_t layer) const;
  /// The slice's arithmetic with a micro-batch, sending over one of its edges both ways, or what
  /// travels there one way, whichever takes longest.
  [[nodiscard]] double slowness(std::uint32_t virtual_stage, layer_range slice) const;

  /// Bytes of a micro-batch that cross into `virtual_stage` when it begins with this layer: none at
  /// either end of the model, or where the slice before is on the same stage.
  [[nodiscard]] double edge_bytes(std::uint32_t virtual_stage, std::size_t layer) const;

  /// Of a stage with these slices, its chunks in order; those left out or empty weigh nothing:
  /// weights, copies of them, their gradients (the sum and, of several, the micro-batch's own), the
  /// optimizer's state, the most that the plan has its micro-batches keep at once, and what may
  /// wait on the edges. A device has no copies of weights, but has those of the model's inputs;
  /// weights are first made on the host, where what goes to another process waits too. Of a
  /// micro-batch's own gradients a device has those of one layer at a time, for no idle core takes
  /// them over.
  [[nodiscard]] stage_memory memory(std::uint32_t stage, std::span<const layer_range> slices) const;
  /// The part of it that planning::memory_cap_bytes is about.
  [[nodiscard]] double capped_bytes(std::uint32_t stage, std::span<const layer_range> slices) const;

 private:
  struct running_sum {
    double forward_s = 0, input_s = 0, weight_s = 0, update_s = 0, parameter_bytes = 0,
           copied_bytes = 0, kept_bytes = 0;
  };
  /// Micro-batches that a stage holds at once, by chunk.
  using held_counts = std::vector<std::uint32_t>;
  /// Bytes that a slice's micro-batch keeps, and those of its largest recomputed range while its
  /// backward runs.
  struct kept {
    double always = 0, again = 0;
  };

  [[nodiscard]] bool is_recomputed(std::size_t layer) const {
    return layer < how_.recompute.size() && how_.recompute[layer];
  }
  /// What a layer's backward has beside what is kept, at most: the gradient of its output, or all
  /// that the loss has, and those of its weights, which are then added to the sum.
  [[nodiscard]] double passing_bytes(std::span<const layer_range> slices) const;
  [[nodiscard]] double edge_s(std::uint32_t virtual_stage, std::size_t layer) const;
  [[nodiscard]] kept kept_bytes(layer_range slice) const;
  void note_held(const plan& steps, std::uint32_t stage);
  /// The most that a stage's micro-batches keep at once. `each`: of one in each chunk.
  [[nodiscard]] double most_held(std::uint32_t stage, const std::vector<double>& each) const;

  model_profile at_;
  const planning& how_;
  model_layout layout_;
  double gradient_copies_;
  double input_bytes_;                          // of a micro-batch's samples
  std::vector<running_sum> sums_;               // of the first i layers
  std::vector<std::vector<held_counts>> held_;  // by stage: none of them below another
};

}  // namespace troupe::engine
