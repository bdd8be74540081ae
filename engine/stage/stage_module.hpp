#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/autograd/contexts.hpp"
#include "engine/autograd/pass.hpp"
#include "engine/autograd/precision.hpp"
#include "engine/device/device_streams.hpp"
#include "engine/model/layer.hpp"
#include "engine/model/loss.hpp"
#include "engine/model/metric.hpp"
#include "engine/schedule/plan.hpp"
#include "engine/stage/gradients.hpp"
#include "engine/stage/microbatch_loss.hpp"
#include "engine/stage/running_statistics.hpp"
#include "engine/stage/weight_queue.hpp"
#include "engine/step/step_key.hpp"

namespace troupe::engine {

/// How a stage computes.
struct stage_options {
  bool is_first = true;
  bool is_last = true;
  loss_function loss = cross_entropy_loss;
  engine::precision precision = precision::fp32;
  bool channels_last = false;
  c10::Device device = c10::kCPU;
  /// Of the device, shared with all that computes for the stage; null: the module makes its own.
  std::shared_ptr<const device_streams> streams = {};
  std::uint64_t seed = 0;            ///< Of what layers draw (dropout).
  std::vector<bool> recompute = {};  ///< Layers whose activations are not kept; empty: none.
  /// Begin deferred weight gradients early (see weight_queue): only for a stage on a CPU whose
  /// arithmetic has one intra-op thread.
  bool idle_cores = false;
  metric_registry metrics = {};  ///< Of evaluations, on the last stage.
};

/// The terms of a training step, beside its micro-batches.
struct step_terms {
  std::uint64_t number = 0;  ///< Which training step this is: layers draw their own in each.
  bool reversible = false;   ///< `end` may undo it: running statistics are copied first.
  /// The stage's first micro-batch among those of the whole batch: layers draw by that number.
  std::uint32_t first_microbatch = 0;
  /// Micro-batches of each logical replica that this stage stands for: each has gradient sums of
  /// its own. Empty: one has them all.
  std::vector<std::uint32_t> shares = {};
  bool keeps_statistics = false;  ///< For `take_statistics`; else layers fold them at once.
};

/// Takes a parameter's gradient as soon as the last micro-batch's is added to it, in the thread
/// that computes: what `take_sums` would give of it, by its place among `parameters()`. Gradients
/// come in the order in which the backward completes them.
using gradient_taker =
    std::function<void(std::size_t parameter, std::optional<at::Tensor> gradient)>;

/// Opens a scope: until the returned object is released, new tensors of the calling thread are
/// allocated where the receivers of gradients want them. Called by several threads, each for
/// itself.
using gradient_room = std::function<std::shared_ptr<void>()>;

/// What one micro-batch's forward gives.
struct forward_outcome {
  at::Tensor activation;  // for the next stage; on the last only without labels
  // On a device these two stay there, for `take_waiting_losses`:
  double loss = 0;  // last stage: this micro-batch's share of the batch's mean loss
  std::vector<double> metrics = {};  // last stage, evaluation: each one's sum
};

/// A loss that is still on the device.
struct waiting_loss {
  microbatch_id microbatch;
  at::Tensor loss;                  // [] f32
  std::vector<at::Tensor> metrics;  // of one number each; none in training
};

/// The arithmetic of one pipeline stage: a slice of the model with its autograd contexts and
/// gradient sums. Never writes a parameter. Batch norm sees one micro-batch at a time, and updates
/// its running statistics in the order of the forwards.
///
/// On a device everything but `take_losses` only gives work to it: within `streams().computing()`,
/// by a thread whose autograd has no other threads (see work_thread). The layers must lie there.
///
/// Used by one thread at a time. Torch's exceptions pass through.
class stage_module {
 public:
  stage_module(model layers, stage_options options);

  /// To be called before the first forward of a training step; otherwise the number in the step's
  /// key counts. `take` gets each gradient that is final before the step ends, if the terms say of
  /// how many micro-batches. `room`: where deferred weight gradients and sums of several gradients
  /// that `take` gets are allocated; empty: like all tensors.
  void begin(const step_key& step, const step_terms& terms, gradient_taker take = {},
             gradient_room room = {});

  /// To be called after the last backward of a step that was begun. `keep` false restores the
  /// running statistics from before the step.
  void end(const step_key& step, bool keep);

  /// `input`: activation of the previous stage or inputs, [n, ...]; not written. `labels` [n]
  /// i64, or [n, T] i64, on the last stage; an evaluation may have none. `batch_size`: samples in
  /// the whole batch, for this micro-batch's weight n / batch_size. A training forward keeps a
  /// context for `backward`.
  forward_outcome forward(const step_key& step, step_kind kind, microbatch_id microbatch,
                          const at::Tensor& input, const at::Tensor& labels,
                          std::int64_t batch_size);

  /// What a step's forwards have left on the device, in their order.
  [[nodiscard]] std::vector<waiting_loss> take_waiting_losses(const step_key& step);
  /// The same, once it is on the host; waits for that.
  [[nodiscard]] std::vector<microbatch_loss> take_losses(const step_key& step);

  /// Returns the gradient of the micro-batch's input, undefined on the first stage, and leaves the
  /// weights' gradients that can wait to `backward_weights`. `gradient`: of this stage's
  /// activation; on the last stage the scale of its loss, [] f32, undefined for 1.
  at::Tensor backward_input(const step_key& step, microbatch_id microbatch,
                            const at::Tensor& gradient);

  /// Completes the micro-batch's parameter gradients in the step's sums, and forgets its context.
  /// The sums are those of an unsplit backward, to the bit, as long as micro-batches come in one
  /// order.
  void backward_weights(const step_key& step, microbatch_id microbatch);

  /// Computes one of the weight gradients that were left to `backward_weights`, for a thread with
  /// nothing else to do; false if there is none. Only on a CPU: a device is not idle when the
  /// thread that feeds it is.
  bool work_ahead() { return options_.device.is_cpu() && weights_.work_ahead(); }

  /// The step's gradients in the order of `parameters()`, those of logical replicas summed in the
  /// order of a tree, and ties inside the module. Resets the sums.
  [[nodiscard]] step_gradients take_gradients();
  /// The same without the ties, which a stage sums over all of its modules, and after its replicas:
  /// those that no `gradient_taker` has.
  [[nodiscard]] step_gradients take_sums();
  /// Those that its layers declare; the other end may be in another module.
  [[nodiscard]] const std::vector<weight_tie>& ties() const noexcept { return ties_; }

  /// What the step's micro-batches give to running statistics, where they are kept.
  [[nodiscard]] step_statistics take_statistics(const step_key& step) {
    return statistics_.take(step);
  }

  /// Folds those of all replicas, in their order. Throws std::invalid_argument for what does not
  /// fit.
  void fold_statistics(const step_key& step, const std::vector<step_statistics>& of_replicas);

  /// What micro-batches hold between their forward and the end of their backward.
  [[nodiscard]] const microbatch_contexts& contexts() const noexcept { return contexts_; }

  /// The most they held at once, counted after each forward and backward. Resets it.
  [[nodiscard]] std::uint64_t take_peak_context_bytes() { return contexts_.take_peak_bytes(); }

  /// Whether what a step's contexts hold is final: no late helper uses it any more.
  [[nodiscard]] bool are_contexts_final() const { return !weights_.is_outrun(); }

  /// Seconds of weight gradients that were computed before their turn. Resets the counter.
  [[nodiscard]] double take_seconds_ahead() { return weights_.take_seconds_ahead(); }

  /// Handles share storage with the layers' own.
  [[nodiscard]] const std::vector<named_tensor>& parameters() const noexcept { return parameters_; }
  [[nodiscard]] const stage_options& options() const noexcept { return options_; }
  [[nodiscard]] const device_streams& streams() const noexcept { return *options_.streams; }
  [[nodiscard]] const model& layers() const noexcept { return layers_; }

 private:
  struct begun_step {
    step_terms terms;
    gradient_taker take = {};
    gradient_room room = {};
    std::vector<at::Tensor> buffers = {};  // before it; empty: not copied yet, or not reversible
    std::vector<std::uint32_t> deferred = {};  // by parameter: tasks that are to be done
    std::uint64_t missing = 0;                 // backwards that have not come
  };

  void note_loss(const step_key& step, waiting_loss fresh, forward_outcome& outcome);
  [[nodiscard]] at::Tensor prepare(const at::Tensor& input) const;
  [[nodiscard]] at::Tensor run_layers(at::Tensor x, bool training) const;
  /// Ends the watch.
  [[nodiscard]] watched_storages made_under(std::optional<storage_watch>& watch) const;
  [[nodiscard]] forward_pass pass_of(const step_key& step, microbatch_id microbatch);
  [[nodiscard]] std::shared_ptr<void> room_in(const step_key& step) const;
  void hand_over(begun_step& step, std::size_t parameter);
  [[nodiscard]] gradient_sum& sum_of(const step_key& step, microbatch_id microbatch);
  void copy_buffers_of(const step_key& step);
  void defer(const step_key& step, microbatch_id microbatch, std::vector<weight_task> tasks);
  void add_deferred(const step_key& step, microbatch_id microbatch, const weight_task& task,
                    at::Tensor gradient);

  model layers_;
  stage_options options_;
  std::vector<named_tensor> parameters_;
  std::vector<named_tensor> buffers_;
  std::unordered_map<const at::TensorImpl*, std::size_t> index_of_;  // of a parameter
  microbatch_contexts contexts_;
  std::vector<gradient_sum> gradients_;  // of each logical replica, at least one
  std::vector<weight_tie> ties_;
  std::map<step_key, begun_step> begun_;
  std::map<step_key, std::vector<waiting_loss>> losses_;
  running_statistics statistics_;
  weight_queue weights_;  // last: its helper uses the rest
};

}  // namespace troupe::engine
