#pragma once

#include <ATen/core/Tensor.h>

#include <caf/actor_control_block.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/transfer/piece.hpp"
#include "engine/model/layer.hpp"
#include "engine/model/layer_range.hpp"
#include "engine/stage/gradients.hpp"
#include "engine/step/stage_core.hpp"
#include "engine/step/step_end_core.hpp"
#include "engine/step/step_vote.hpp"
#include "messages/base/ids.hpp"

/// What the actors of a training run say to each other. Tensors are shared by reference inside a
/// process and nobody writes them once they are sent. Each message lists its members for the wire
/// (see remote/fields.hpp); `add_protocol` registers them all.
namespace troupe::actors {

class message_registry;

using engine::step_decision;
using engine::step_vote;

/// Which micro-batch of which step a message is about, and which of its receiver's chunks it is
/// for.
struct microbatch_key {
  engine::step_key step;
  microbatch_id microbatch;
  std::uint32_t chunk = 0;

  auto operator<=>(const microbatch_key&) const = default;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.step.epoch, self.step.step, self.microbatch, self.chunk);
  }
};

/// The output of a slice of the model for the slice after it; or images, for the first.
struct activation {
  microbatch_key key;
  at::Tensor tensor;  // [n, ...]

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.key, self.tensor);
  }
};

/// Labels, for the last slice of the model.
struct target {
  microbatch_key key;
  at::Tensor labels;  // [n] i64, or [n, T] i64

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.key, self.labels);
  }
};

/// The gradient of the activation that the slice before sent.
struct gradient {
  microbatch_key key;
  at::Tensor tensor;  // [n, ...], undefined where nothing upstream needs it

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.key, self.tensor);
  }
};

/// The receiver has begun to use what came on this edge: its sender may send one more. Grants go to
/// the slice before or the feeder for an input, to the slice after for a gradient, to the feeder
/// for a target. Travels on the control lane, so that tensors under way do not delay it.
struct credit {
  engine::edge on = engine::edge::input;
  microbatch_key key;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.on, self.key);
  }
};

/// A stage's part of one step.
struct run {
  engine::step_key step;
  engine::step_kind kind = engine::step_kind::training;
  std::string plan;             // this stage's plan alone, in text form (engine::to_text)
  std::int64_t batch_size = 0;  // images in the whole batch
  std::uint64_t number = 0;     // which training step this is, from 1
  double learning_rate = 0;
  bool rehearsal = false;  // no update: the stage keeps the gradients for `read_rehearsal`
  double loss_scale = 1;   // what the loss is multiplied by; 0: as the last decision says

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.step.epoch, self.step.step, self.kind, self.plan, self.batch_size, self.number,
      self.learning_rate, self.rehearsal, self.loss_scale);
  }
};

/// The step is over, and applied or left out.
struct run_done {
  engine::step_key step;
  double loss = 0;                       // last stage: mean over the batch
  std::int64_t correct = 0;              // last stage, evaluation
  double busy_s = 0;                     // seconds of arithmetic, the update included
  std::uint64_t peak_memory_bytes = 0;   // of the stage's process, so far
  std::uint64_t peak_context_bytes = 0;  // most that its contexts held at once in this step
  std::string skipped;                   // why the step was left out; empty: it was not
  double loss_scale = 1;                 // that the step's loss was multiplied by

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.step.epoch, self.step.step, self.loss, self.correct, self.busy_s, self.peak_memory_bytes,
      self.peak_context_bytes, self.skipped, self.loss_scale);
  }
};

/// What the neighbour waits for is there: from a stage's work thread to its actor, never between
/// nodes, before the action's `work_done`.
struct output_ready {
  engine::step_key step;
  engine::action action = {};
  at::Tensor tensor = {};  // activation or input gradient
};

/// An action's arithmetic is over: from a stage's work thread to its actor, never between nodes.
struct work_done {
  engine::step_key step;
  engine::action action = {};
  double loss = 0;
  std::int64_t correct = 0;
  double busy_s = 0;
  std::optional<std::string> failure = {};
};

/// A step's own gradients are summed, or with `complete` also those of tied weights, unscaled and
/// prepared for the update: from a stage's work thread to its actor, never between nodes.
struct gradients_ready {
  engine::step_key step;
  engine::step_gradients gradients = {};
  bool complete = false;
  engine::gradient_report report = {};  // of complete ones
  double busy_s = 0;
  std::optional<std::string> failure = {};
};

/// The step has left no trace in the stage: from its work thread to its actor, never between nodes.
struct step_undone {
  engine::step_key step;
};

/// The sum of a weight's gradients on one stage, for the stage that holds the weight's other end.
struct tied_gradient {
  engine::step_key step;
  std::string parameter;            // the receiver's
  std::optional<at::Tensor> value;  // [..] f32

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.step.epoch, self.step.step, self.parameter, self.value);
  }
};

/// What is the scale now, and since how many steps? From the pipeline, between steps; never between
/// nodes.
struct read_loss_scale {};

struct loss_scale_now {
  double scale = 1;
  std::uint32_t applied = 0;  // see engine::loss_scaler
};

/// An update's gradients, for the stage's optimizer.
struct apply_gradients {
  std::uint64_t step = 0;  // number of the training step that completes it, from 1
  double learning_rate = 0;
  double scale = 1;                                       // the gradients are multiplied by it
  std::vector<std::optional<at::Tensor>> gradients = {};  // one a parameter, chunk by chunk

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.step, self.learning_rate, self.scale, self.gradients);
  }
};

struct applied {
  param_version version;  // optimizer steps applied so far
  double busy_s = 0;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.version, self.busy_s);
  }
};

/// How gradients become updates, beside the optimizer's own options and their clipping by the norm
/// of all stages together, which is the pipeline's.
struct update_rules {
  std::vector<std::string> groups = {};  // see optimizers::parse_group
  double clip_value = 0;                 // largest magnitude of an element; 0: any
  std::uint32_t accumulate = 1;          // steps whose gradients are averaged for one update

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.groups, self.clip_value, self.accumulate);
  }
};

/// Makes a stage and its optimizer on the node that gets it.
struct build_stage {
  stage_id stage;
  std::string model;  // a name in the node's model registry
  std::int64_t classes = 0;
  std::map<std::string, double> model_options = {};
  std::uint64_t seed = 0;
  std::vector<engine::layer_range> slices;  // one a chunk of the stage
  std::string loss;
  std::string precision = "fp32";
  bool channels_last = false;
  std::string device = "cpu";
  std::int32_t threads = 1;                 // intra-op threads of the stage's arithmetic
  bool idle_cores = false;                  // with one thread on a CPU: see engine::weight_queue
  std::vector<std::string> recompute = {};  // layers of the model, or groups of them
  std::string optimizer;
  std::map<std::string, double> optimizer_options;
  update_rules rules = {};

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.stage, self.model, self.classes, self.model_options, self.seed, self.slices, self.loss,
      self.precision, self.channels_last, self.device, self.threads, self.idle_cores,
      self.recompute, self.optimizer, self.optimizer_options, self.rules);
  }
};

struct stage_built {
  caf::strong_actor_ptr stage;  // a stage_actor

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.stage);
  }
};

/// Where a slice of the model lives: a stage_actor, null beyond the model's ends, and its chunk.
/// May be the stage that is told.
struct neighbour {
  caf::strong_actor_ptr stage;
  std::uint32_t chunk = 0;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.stage, self.chunk);
  }
};

/// A parameter of a stage that is one weight with a parameter of another.
struct tied_parameter {
  std::string parameter;
  caf::strong_actor_ptr other;  // a stage_actor
  std::string other_parameter;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.parameter, self.other, self.other_parameter);
  }
};

/// Tells a stage the slices before and after each of its own, who feeds the model's two ends (a
/// feeder_actor), the credits of each edge, its number among the stages, its ties with others, and
/// how the stages' steps are coupled.
struct connect_stage {
  std::vector<neighbour> before, after;  // one a chunk
  caf::strong_actor_ptr feeder;
  std::uint32_t credits = engine::default_credits;
  stage_id place = {};
  std::vector<tied_parameter> ties = {};
  caf::strong_actor_ptr coordinator = {};  // a step_coordinator_actor; null: nothing couples them
  bool may_leave_out = false;              // see engine::step_end_rules
  bool clips_norm = false;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.before, self.after, self.feeder, self.credits, self.place, self.ties, self.coordinator,
      self.may_leave_out, self.clips_norm);
  }
};

/// Weights and buffers to take over, piece after piece: exactly those of the chunk. A piece from
/// the beginning on starts anew.
struct load_weights {
  std::uint32_t chunk = 0;
  tensor_piece piece = {};

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.chunk, self.piece);
  }
};

struct read_weights {
  std::uint32_t chunk = 0;
  list_place from = {};
  piece_limits most = {};

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.chunk, self.from, self.most);
  }
};

/// Of a chunk's parameters and buffers in the model's order, as they are after the last update.
struct weights {
  tensor_piece piece = {};

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.piece);
  }
};

/// A stage's optimizer state under the names of optimizers/saved_state.hpp, to take over, piece
/// after piece. It replaces the state when the last one is there.
struct load_state {
  tensor_piece piece = {};

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.piece);
  }
};

struct read_state {
  list_place from = {};
  piece_limits most = {};

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.from, self.most);
  }
};

/// Of a stage's optimizer state as it is after the last update.
struct kept_state {
  tensor_piece piece = {};

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.piece);
  }
};

/// What the last rehearsal gave: the stage's gradients, one a parameter and undefined where there
/// is none, or its buffers as they were after it: they have been put back since.
struct read_rehearsal {
  bool buffers = false;
  list_place from = {};
  piece_limits most = {};

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.buffers, self.from, self.most);
  }
};

struct rehearsed {
  tensor_piece piece = {};

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.piece);
  }
};

/// A batch in micro-batches, for the feeder of the same process, never between nodes.
struct feed_batch {
  engine::step_key step;
  std::vector<at::Tensor> images;  // [n, C, H, W] f32 each, or [n, T] i64
  std::vector<at::Tensor> labels;  // [n] i64 each, or [n, T] i64
};

/// Reads a batch and has its micro-batches fed to the first and the labels to the last stage.
struct deliver_batch {
  engine::step_key step;
  bool test = false;   // from the test split
  at::Tensor indices;  // [N] i64, of the samples
  std::uint32_t microbatches = 1;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.step.epoch, self.step.step, self.test, self.indices, self.microbatches);
  }
};

/// The batch is with the feeder. Unreadable samples were left out, so it may be smaller than asked
/// for.
struct batch_delivered {
  engine::step_key step;
  std::int64_t images = 0;
  std::uint32_t microbatches = 0;  // never more than images
  std::uint64_t skipped = 0;       // unreadable samples since the start

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.step.epoch, self.step.step, self.images, self.microbatches, self.skipped);
  }
};

/// Done, with nothing to say.
struct done {
  template <class Self, class Fields>
  static void fields(Self&, Fields&) {}
};

/// Ends the node's process in order.
struct shut_down {
  template <class Self, class Fields>
  static void fields(Self&, Fields&) {}
};

/// Registers every message above that travels between processes, and those of parameter servers.
void add_protocol(message_registry& registry);

}  // namespace troupe::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::activation)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::target)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::gradient)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::credit)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::feed_batch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::run)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::run_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::output_ready)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::work_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::gradients_ready)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::step_undone)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::tied_gradient)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::engine::step_vote)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::engine::step_decision)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::read_loss_scale)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::loss_scale_now)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::read_rehearsal)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::rehearsed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::apply_gradients)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::applied)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::build_stage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::stage_built)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::connect_stage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::load_weights)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::read_weights)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::weights)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::load_state)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::read_state)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::kept_state)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::deliver_batch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::batch_delivered)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::shut_down)
