#pragma once

#include <ATen/core/Tensor.h>

#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "actors/base/same_actor.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/flow.hpp"
#include "actors/messages/mirror.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/messages/slices.hpp"
#include "actors/messages/stage.hpp"
#include "actors/norm/stage_norm.hpp"
#include "actors/recovery/action_record.hpp"
#include "actors/recovery/departed_core.hpp"
#include "actors/recovery/stores_core.hpp"
#include "actors/recovery/version_forms_core.hpp"
#include "actors/stage/edges/edge_ports.hpp"
#include "actors/step_end/replica_sum.hpp"
#include "actors/step_end/tied_gradients.hpp"
#include "actors/transfer/pieces.hpp"
#include "engine/collective/port.hpp"
#include "engine/model/activity.hpp"
#include "engine/stage/stage_module.hpp"
#include "engine/stage/work_thread.hpp"
#include "engine/step/edge.hpp"
#include "engine/step/proved_plan.hpp"
#include "engine/step/replay_window.hpp"
#include "messages/base/error.hpp"
#include "optimizers/training/gradients.hpp"

namespace troupe::engine {
class stage_core;
class step_end_core;
}  // namespace troupe::engine
namespace troupe::messages {
class shared_memory;
}  // namespace troupe::messages

/// What a stage's shell is made of, for its own sources alone: those in `steps` order its work and
/// move micro-batches, those in `work` compute with them and end training steps.
namespace troupe::actors {

/// What a neighbour or the feeder has sent.
struct arrived_tensor {
  at::Tensor tensor = {};         // [n, ...]
  engine::ready_event made = {};  // null: it is there
  // Of what came from the host to a stage on a device, begun by the `arriving` thread.
  std::shared_future<engine::uploaded_tensor> copy = {};
};

/// What has arrived for one micro-batch and not been used yet.
struct microbatch_inbox {
  arrived_tensor input;
  arrived_tensor labels;  // [n] i64, or [n, T] i64, last stage
  arrived_tensor gradient;
};

/// A computed output. Once it has left for another process, its tensor and event are the `leaving`
/// thread's, which puts the host's copy in their place.
struct kept_output {
  at::Tensor tensor;
  engine::ready_event made;
  bool left = false;
};

/// An output that the core has not let go yet, or that is logged: of which own chunk, for which
/// edge.
using output_key = std::pair<microbatch_key, engine::edge>;

/// A neighbouring slice of the model.
struct slice_link {
  stage_actor stage;  // null beyond the model's ends
  std::uint32_t chunk = 0;
};

/// A step that was announced and not answered.
struct announced_step {
  run_stage order;
  stage_done report;
  caf::typed_response_promise<stage_done> answer;
  std::optional<announced_groups> groups = {};  // nothing: each micro-batch goes alone
};

/// What a dry run gave (see read_dry_run).
struct dry_run_outcome {
  std::vector<engine::named_tensor> gradients;
  std::vector<engine::named_tensor> buffers;
};

/// What the end of a training step needs.
struct step_end_state {
  std::unique_ptr<engine::step_end_core> core;  // not null
  optimizer_actor optimizer;
  std::vector<engine::named_tensor> parameters;  // of all chunks, in the order of gradients
  std::uint32_t accumulate = 1;                  // see update_rules
  double clip_value = 0;
  std::optional<update_terms> repeatable;  // see stage_parts
  optimizers::gradient_accumulator sums;   // the work thread's
  std::vector<tied_parameter> ties;
  step_coordinator_actor coordinator;  // null: nothing couples the stages
  bool may_leave_out = false;
  double loss_scale = 1;                            // that the last decision named
  engine::step_gradients gradients;                 // of the step that ends
  std::vector<engine::step_statistics> statistics;  // by chunk, of its own micro-batches
  std::vector<std::vector<engine::step_statistics>> all_statistics;  // by chunk, then by replica
  replica_sum replicas;
  tied_gradients tied;                     // from other stages
  std::optional<dry_run_outcome> dry_run;  // the last one
};

/// What the stage was after an update.
struct stage_version {
  std::uint64_t step = 0;
  std::vector<engine::named_tensor> tensors;
};

/// A slice that is to be written once the version of its step is there.
struct wanted_slice {
  write_slice what;
  caf::typed_response_promise<slice_written> answer;
};

/// Whether whoever waits for a version to be kept waits for a lost keeper's successor too, or is
/// told of the loss.
enum class patience : std::uint8_t { for_another_keeper, for_these_keepers };

/// Somebody who waits for that.
struct version_waiter {
  std::function<void(const result<void>&)> what;
  patience how = patience::for_another_keeper;
};

/// What a version comes from: the end of a step, which has made one update or none since the last
/// version, or whatever the stage has become otherwise.
enum class version_origin : std::uint8_t { step, elsewhere };

/// What the optimizer was handed since the last version.
struct noted_update {
  std::uint64_t step = 0;
  double learning_rate = 0;
  double scale = 1;
  std::optional<engine::step_gradients> gradients = {};  // nullopt: nobody wanted them
};

/// What makes a version of the one before.
struct version_update {
  update_terms terms = {};
  std::vector<engine::named_tensor> tensors = {};  // as store_update has them
  std::uint64_t digest = 0;                        // of the version
  version_choice choice = {};
};

/// For keepers that share no memory with the stage (see actors/stage/mirror).
struct update_state {
  version_forms_core forms = version_forms_core();
  std::optional<noted_update> noted = {};
  // Weights or the optimizer's state, other than by an update, since the last version.
  bool was_written = false;
  std::optional<version_update> making = {};          // of the version that is being copied
  std::map<std::uint64_t, version_update> made = {};  // by step, until all keepers have it
  std::optional<version_form> told = {};              // in the log
};

/// What the stage was after its last updates, on its way to those who keep it.
struct version_state {
  std::vector<keeper_actor> keepers;  // empty: nobody does
  caf::strong_actor_ptr spare = {};   // the one that none replaces if it is lost; or null
  std::uint32_t stage = 0;            // its number with them
  std::uint64_t step = 0;             // of the last version
  stores_core stores = stores_core();
  // By step, as long as a keeper may need it. The own process's keeper has the same tensors.
  std::map<std::uint64_t, std::vector<engine::named_tensor>> kept = {};
  update_state updates = {};
  std::optional<error> problem = {};  // why one of the keepers never has the last one
  // Copies of the optimizer's half and of the stage's own; sent once both are there.
  std::optional<std::vector<engine::named_tensor>> state = {}, buffers = {};
  std::optional<engine::shown_tensors> shown = {};  // the optimizer's half, before it is copied
  engine::unread_snapshots written = {};
  // Until all have it, or one cannot.
  std::vector<version_waiter> waiting = {};
  bool copying = false;                            // the version of `step`
  std::shared_ptr<const stage_version> last = {};  // that keepers have, or get
  std::optional<wanted_slice> slice = {};
};

/// The gradient of a tied weight, as it was sent.
struct sent_tie {
  engine::step_key step;
  std::size_t tie = 0;              // which of the stage's
  std::optional<at::Tensor> value;  // [..] f32
  engine::ready_event made;
};

/// What another replica was sent for the sums of a step, or all others were.
struct sent_to_replicas {
  std::variant<replica_gradients, replica_statistics> what;
  std::optional<std::uint32_t> to = {};  // nullopt: all
  engine::ready_event made = {};
};

/// What is needed when a neighbour is lost and another stage does its last steps again. What was
/// sent is held by reference, nothing is copied.
struct replay_state {
  bool logs = false;  // else a lost neighbour is never replaced
  engine::replay_window window = engine::replay_window();
  std::vector<sent_tie> ties = {};
  std::vector<sent_to_replicas> sums = {};
  // The last step whose updated parameters the other replicas were sent; they are still the own.
  std::optional<engine::step_key> shared = {};
  departed_core<caf::strong_actor_ptr, same_actor> departed = {};
  std::shared_ptr<action_record> begun = std::make_shared<action_record>();
};

struct stage_state {
  stage_state();  // as the destructor in step_order.cpp: few sources know the cores
  stage_state(const stage_state&) = delete;
  stage_state& operator=(const stage_state&) = delete;
  /// Before the work thread is joined, it is told that nobody answers it any more.
  ~stage_state();

  std::string name;
  std::unique_ptr<engine::stage_core> core;            // not null
  std::map<std::uint32_t, engine::shared_plan> plans;  // by number, each checked
  // By chunk; used by the work thread while an action runs.
  std::vector<std::unique_ptr<engine::stage_module>> modules;
  std::vector<slice_link> before, after;  // by chunk
  feeder_actor feeder;                    // of the model's two ends
  std::map<microbatch_key, microbatch_inbox> inbox;
  // Computed, and not sent, or logged.
  std::map<output_key, std::shared_ptr<kept_output>> outputs;
  std::map<engine::step_key, announced_step> steps;
  step_end_state end;
  version_state versions;
  slice_writer_actor writer;  // of checkpoints; null until the first
  replay_state replay;
  std::vector<engine::named_tensor> predicted;     // by the last slice, of the last evaluation
  std::map<std::uint32_t, weight_loader> loading;  // by chunk: its weights are partly there
  std::shared_ptr<engine::activity> doing;         // the work thread's
  std::shared_ptr<engine::activity> summing;       // the other thread's
  int threads = 1;                                 // intra-op, of each of the threads below
  std::shared_ptr<const engine::device_streams> streams;  // of all threads of the stage
  device_libraries libraries;
  std::shared_ptr<engine::collective_port> port;    // of the replicas; null: they sum over links
  edge_ports edges;                                 // to stages of other processes
  std::shared_ptr<messages::shared_memory> memory;  // see stage_parts
  std::uint32_t connection = 0;                     // how often the stage has been connected
  std::uint32_t incarnation = 0;                    // see build_stage
  stage_norm norm;
  // Waits for copies to the host of what goes to other processes; null on the CPU.
  std::unique_ptr<engine::work_thread> leaving;
  std::unique_ptr<engine::work_thread> arriving;  // the same, for copies to the device
  std::unique_ptr<engine::work_thread> adding;    // replicas' gradients; null: there are none
  std::unique_ptr<engine::work_thread> work;      // last: its tasks use the module
};

using stage_pointer = stage_actor::stateful_pointer<stage_state>;

/// The modules of all chunks, for the work thread.
using module_list = std::vector<engine::stage_module*>;
[[nodiscard]] module_list modules_of(const stage_state& state);

/// Has the work thread do something that it is seen to be at. `what` says for which step.
void post_work(const stage_state& state, const engine::work_item& what, std::function<void()> task);

/// Whether what it is sent leaves this process, and so the device.
template <class Receiver>
[[nodiscard]] bool is_elsewhere(stage_pointer self, const Receiver& who) {
  return !self->state.streams->is_cpu() && who.node() != self->node();
}

/// For messages: to the same place by way of the host, and with when its tensors are there.
void to_host(tied_gradient& message);
void to_host(replica_gradients& message);
void to_host(replica_statistics& message);
void to_host(replica_parameters& message);

/// Sends tensors that a stream of the stage has made by then: `made`. A stage in another process
/// gets copies of the host's, a little later.
template <class Message>
void send_tensors(stage_pointer self, const stage_actor& to, Message message,
                  const engine::ready_event& made) {
  message.made = made;
  if (!is_elsewhere(self, to)) return self->send(to, std::move(message));
  self->state.leaving->post(
      [from = caf::actor_cast<stage_actor>(self), to, message = std::move(message)]() mutable {
        to_host(message);
        message.made.reset();
        caf::send_as(from, to, std::move(message));
      });
}

/// What the step's loss is multiplied by. Asked once its backwards begin, so the decision on the
/// step before has come.
[[nodiscard]] double loss_scale_of(const stage_state& state, const announced_step& step);

/// The steps outstanding cannot succeed any more; says so to whoever waits for them
/// (step_order.cpp).
void give_up(stage_pointer self, const error& why);

/// The same, for what went wrong on this stage: the text gets its name.
void fail_all(stage_pointer self, const error& why);

/// Whether the message under way comes from a stage or a feeder that was lost and replaced.
[[nodiscard]] bool has_departed(stage_pointer self);

/// A step was decided: what no stage can need again is forgotten (stage_replay.cpp).
void forget_decided(stage_pointer self, const engine::step_key& key);

/// Nothing of a training step is left to do: answers it, and lets the next one use the weights
/// (step_order.cpp).
void finish_step(stage_pointer self, const engine::step_key& key);

}  // namespace troupe::actors
