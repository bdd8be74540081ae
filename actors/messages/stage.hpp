#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "engine/collective/norm/norm_parts.hpp"
#include "engine/device/device_streams.hpp"
#include "engine/schedule/plan.hpp"
#include "engine/stage/gradients.hpp"
#include "engine/stage/microbatch_loss.hpp"
#include "engine/stage/running_statistics.hpp"
#include "engine/step/step_key.hpp"
#include "engine/step/step_vote.hpp"
#include "messages/base/error.hpp"

/// A stage's part of a step: the trainer's order and the stage's answer, reports of the stage's own
/// work thread, and gradients that stages exchange for tied weights and between replicas.
namespace troupe::actors {

/// A stage's actions as a tensor: a message's header could not hold those of a long plan.
struct packed_actions {
  at::Tensor numbers;  // [n] i32, see engine::pack

  [[nodiscard]] static packed_actions pack(const std::vector<engine::action>& actions);
  /// What does not come from `pack` is a std::invalid_argument.
  [[nodiscard]] std::vector<engine::action> unpack() const;

  /// As a member of a message, instead of the list itself.
  template <class List, class Fields>
  static void fields_of(List& actions, Fields& f) {
    packed_actions packed;
    if constexpr (std::is_const_v<List>) packed = pack(actions);
    f(packed.numbers);
    if constexpr (!std::is_const_v<List>) actions = packed.unpack();
  }
};

/// The stage's part of a plan for later steps, sent and checked once. It replaces a plan of the
/// same number.
struct announce_plan {
  static constexpr auto declared = travels("announce_plan");

  std::uint32_t number = 0;  // below engine::plan_book::capacity
  engine::step_kind kind = engine::step_kind::training;
  std::uint32_t microbatches = 0;
  std::uint32_t chunks = 1;
  engine::stage_plan steps;

  static void fields(auto& self, auto& f) {
    f(self.number, self.kind, self.microbatches, self.chunks, self.steps.memory_cap);
    packed_actions::fields_of(self.steps.actions, f);
  }
};

/// A stage's part of one step.
struct run_stage {
  static constexpr auto declared = travels("run_stage");

  engine::step_key step;
  engine::step_kind kind = engine::step_kind::training;
  std::uint32_t plan = 0;       // which of the plans that were announced
  std::int64_t batch_size = 0;  // samples in the whole batch
  std::uint64_t number = 0;     // which training step this is, from 1
  double learning_rate = 0;
  bool dry_run = false;   // no update: the stage keeps the gradients for `read_dry_run`
  double loss_scale = 1;  // what the loss is multiplied by; 0: as the last decision says
  std::uint32_t first_microbatch = 0;  // of the stage's replica, in the whole batch
  // Micro-batches of each of its logical replicas; none at all: the plan does not count. Empty: all
  // of the plan are of one.
  std::vector<std::uint32_t> shares = {};
  // Where batch norm is synchronized over replicas, in training: micro-batches of each logical
  // replica of all replicas. The plan is then of groups (engine::norm_groups), and so is what the
  // stage is sent. Else empty.
  std::vector<std::uint32_t> norm_shares = {};
  engine::step_key done_before = {};  // all stages have answered the steps before this one

  static void fields(auto& self, auto& f) {
    f(self.step.epoch, self.step.step, self.kind, self.plan, self.batch_size, self.number,
      self.learning_rate, self.dry_run, self.loss_scale, self.first_microbatch, self.shares,
      self.norm_shares, self.done_before.epoch, self.done_before.step);
  }
};

/// What one stage did in a step.
struct stage_share {
  double busy_s = 0;                     ///< Seconds of arithmetic, including the update.
  std::uint64_t peak_memory_bytes = 0;   ///< Of its process, so far.
  std::uint64_t peak_context_bytes = 0;  ///< Most that its contexts held at once in this step.
  std::uint64_t computed_again = 0;      ///< Actions that its process had begun before.
  std::uint64_t peak_device_bytes = 0;   ///< Of its process on its device, so far; 0 on the CPU.
};

/// The step is over, and its update was applied or skipped. On the same lane as votes, so that it
/// arrives before the stage's next vote: a stage whose vote on a step is known has answered all
/// steps before it (docs/recovery.md).
struct stage_done {
  static constexpr auto declared = travels("stage_done", messages::lane::control);

  engine::step_key step;
  // Last stage: of each logical replica; together they are the mean over the batch.
  std::vector<double> losses = {};
  std::vector<std::vector<double>> metrics = {};  // last stage, evaluation: the sums of each one
  stage_share share = {};
  std::string skipped;    // why the step was left out; empty: it was not
  double loss_scale = 1;  // that the step's loss was multiplied by

  static void fields(auto& self, auto& f) {
    f(self.step.epoch, self.step.step, self.losses, self.metrics, self.share.busy_s,
      self.share.peak_memory_bytes, self.share.peak_context_bytes, self.skipped, self.loss_scale,
      self.share.computed_again, self.share.peak_device_bytes);
  }
};

/// The tensor that a neighbour waits for is computed: from a stage's work thread to its actor,
/// never between nodes, before the action's `work_done`.
struct output_ready {
  static constexpr auto declared = stays_here;

  engine::step_key step;
  engine::action action = {};
  at::Tensor tensor = {};  // activation or input gradient
  engine::ready_event made = {};
};

/// The losses that an evaluation's forwards left on a device, copied to the host: from a stage's
/// work thread to its actor, never between nodes, when all actions of the step are done.
struct losses_known {
  static constexpr auto declared = stays_here;

  engine::step_key step;
  std::vector<engine::microbatch_loss> losses = {};
  std::optional<std::string> failure = {};
};

/// An action's arithmetic is over: from a stage's work thread to its actor, never between nodes.
struct work_done {
  static constexpr auto declared = stays_here;

  engine::step_key step;
  engine::action action = {};
  std::vector<engine::microbatch_loss> losses = {};  // of a forward, on the last stage of a CPU
  double busy_s = 0;
  std::optional<std::string> failure = {};
};

/// A step's own gradients are summed, or with `complete` also those of tied weights, unscaled and
/// prepared for the update: from a stage's work thread to its actor, never between nodes.
struct gradients_ready {
  static constexpr auto declared = stays_here;

  engine::step_key step;
  engine::step_gradients gradients = {};
  std::vector<engine::step_statistics> statistics = {};  // by chunk, of own micro-batches
  bool complete = false;
  engine::gradient_report report = {};  // of complete ones
  // With complete ones, from the last stage on a device: what the step's forwards have left there.
  std::vector<engine::microbatch_loss> losses = {};
  double busy_s = 0;
  std::optional<std::string> failure = {};
};

/// The step has left no trace in the stage: from its work thread to its actor, never between nodes.
struct step_undone {
  static constexpr auto declared = stays_here;

  engine::step_key step;
};

/// The sum of a tied weight's gradients on one stage, for the stage that holds the other copy.
struct tied_gradient {
  static constexpr auto declared = travels("tied_gradient");

  engine::step_key step;
  std::string parameter;            // the receiver's
  std::optional<at::Tensor> value;  // [..] f32
  engine::ready_event made = {};    // stays in the process

  static void fields(auto& self, auto& f) {
    f(self.step.epoch, self.step.step, self.parameter, self.value);
  }
};

/// A parameter's gradient is final, the last micro-batch's included: from a stage's work thread to
/// its actor, never between nodes, before the step's `gradients_ready`, which leaves it out.
struct gradient_final {
  static constexpr auto declared = stays_here;

  engine::step_key step;
  std::size_t parameter = 0;             // of all chunks
  std::optional<at::Tensor> value = {};  // [..]
};

/// From a stage to the same stage of another replica, for a step's sum over replicas, bucket by
/// bucket while the backward goes on: the sender's gradients of a bucket that the receiver adds up,
/// or the sum of one, as the sender has added it up.
struct replica_gradients {
  static constexpr auto declared = travels("replica_gradients");
  static constexpr bool tensors_are_only_read = true;  // additions and updates make new ones

  engine::step_key step;
  std::uint32_t bucket = 0;  // see engine::make_buckets
  std::uint32_t from = 0;    // replica
  bool summed = false;
  std::vector<at::Tensor> gradients;  // [..] each; undefined: none
  engine::ready_event made = {};      // stays in the process

  static void fields(auto& self, auto& f) {
    f(self.step.epoch, self.step.step, self.bucket, self.from, self.summed, self.gradients);
  }
};

/// The same, once per step: what the sender's micro-batches contribute to running statistics, and,
/// if gradients are not summed over links, the parameters for which the sender has no gradient.
struct replica_statistics {
  static constexpr auto declared = travels("replica_statistics");

  engine::step_key step;
  std::uint32_t from = 0;                                // replica
  std::vector<engine::step_statistics> statistics = {};  // by chunk
  engine::ready_event made = {};                         // stays in the process
  std::vector<std::uint32_t> without = {};               // parameters, of all chunks

  static void fields(auto& self, auto& f) {
    f(self.step.epoch, self.step.step, self.from, self.statistics, self.without);
  }
};

/// The same, after an update that replicas share: the parameters of a bucket that the sender owns.
/// They are its own tensors, which it next writes in an update in which the receiver takes part.
struct replica_parameters {
  static constexpr auto declared = travels("replica_parameters");

  engine::step_key step;
  std::uint32_t bucket = 0;        // see engine::make_buckets
  std::uint32_t from = 0;          // replica
  std::vector<at::Tensor> values;  // [..] each, in the bucket's order
  engine::ready_event made = {};   // stays in the process

  static void fields(auto& self, auto& f) {
    f(self.step.epoch, self.step.step, self.bucket, self.from, self.values);
  }
};

/// From a stage to the same stage of another replica, in the middle of an action: the sender's part
/// of a sum of a synchronized batch norm over the members of a group in all replicas. The sums come
/// one after another: a sender waits for the receiver's part before it sends the next.
struct replica_norm {
  static constexpr auto declared = travels("replica_norm");

  engine::norm_place at;
  std::uint32_t from = 0;  // replica
  engine::norm_sum what = engine::norm_sum::moments;
  at::Tensor numbers;  // [n] f64

  static void fields(auto& self, auto& f) {
    f(self.at.step.epoch, self.at.step.step, self.at.backward, self.at.chunk, self.at.group,
      self.at.ordinal, self.from, self.what, self.numbers);
  }
};

/// A synchronized batch norm waits for a sum: from a stage's work thread to its actor, never
/// between nodes.
struct norm_given {
  static constexpr auto declared = stays_here;

  engine::norm_place at;
  engine::norm_sum what = engine::norm_sum::moments;
  engine::norm_part part = {};
  std::uint32_t connection = 0;  // see replicas_added
};

/// The sum of a bucket over replicas is computed: from the thread that adds, or from a port of the
/// replicas' devices, to the stage's actor, never between nodes. With a port, only the owner has
/// the sums, if nobody else needs them.
struct replicas_added {
  static constexpr auto declared = stays_here;

  engine::step_key step;
  std::uint32_t bucket = 0;
  engine::step_gradients sums = {};
  std::optional<error> failure = {};
  std::uint32_t connection = 0;  // of the stage: of an earlier one it concerns nobody
};

/// With a port: the parameters that other replicas have updated have arrived; nullopt for the own
/// ones.
struct replicas_gathered {
  static constexpr auto declared = stays_here;

  engine::step_key step;
  engine::step_gradients values = {};  // one per parameter
  std::optional<error> failure = {};
  std::uint32_t connection = 0;  // see replicas_added
};

using stage_messages =
    message_list<announce_plan, run_stage, stage_done, output_ready, work_done, losses_known,
                 gradients_ready, step_undone, tied_gradient, gradient_final, replica_gradients,
                 replica_statistics, replica_parameters, replica_norm, norm_given, replicas_added,
                 replicas_gathered>;

}  // namespace troupe::actors
