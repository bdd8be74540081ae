#pragma once

#include <caf/actor_control_block.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "engine/collective/edge_transport.hpp"
#include "engine/collective/sum_choice_core.hpp"
#include "engine/model/layer_range.hpp"
#include "engine/step/edge.hpp"
#include "messages/base/ids.hpp"

/// How a pipeline is built on its nodes, and put together.
namespace troupe::actors {

/// How gradients become updates, beside the optimizer's own options and their clipping by the norm
/// of all stages together, which is the pipeline's.
struct update_rules {
  std::vector<std::string> groups = {};  // see optimizers::parse_group
  double clip_value = 0;                 // largest magnitude of an element; 0: any
  std::uint32_t accumulate = 1;          // steps whose gradients are averaged for one update
  std::uint32_t state_shares = 1;        // replicas that the optimizer's state is shared out to

  static void fields(auto& self, auto& f) {
    f(self.groups, self.clip_value, self.accumulate, self.state_shares);
  }
};

/// Makes a stage and its optimizer on the node that gets it.
struct build_stage {
  static constexpr auto declared = travels("build_stage");

  stage_id stage;
  std::string name = {};  // for people; empty: "stage-1"
  std::string model;      // a name in the node's model registry
  std::int64_t classes = 0;
  std::map<std::string, double> model_options = {};
  std::uint64_t seed = 0;
  bool weights_follow = false;              // all of them: it need not begin with the seed's
  std::vector<engine::layer_range> slices;  // one per chunk of the stage
  std::string loss;
  std::string precision = "fp32";
  bool tf32 = false;
  bool deterministic = false;
  bool channels_last = false;
  std::string device = "cpu";
  std::uint32_t seat = 0, seats = 1;        // among its machine's stages of device = "auto"
  std::int32_t threads = 1;                 // intra-op threads of the stage's arithmetic
  bool idle_cores = false;                  // with one thread on a CPU: see engine::weight_queue
  std::vector<std::string> recompute = {};  // layers of the model, or groups of them
  std::string optimizer;
  std::map<std::string, double> optimizer_options;
  update_rules rules = {};
  std::vector<std::string> metrics = {};  // of evaluations, names in the node's registry
  // How many stages the trainer has had built in this place by then, so that keepers of versions
  // tell a stage from one that it has replaced, and that may live.
  std::uint32_t incarnation = 0;

  static void fields(auto& self, auto& f) {
    f(self.stage, self.name, self.model, self.classes, self.model_options, self.seed,
      self.weights_follow, self.slices, self.loss, self.precision, self.tf32, self.deterministic,
      self.channels_last, self.device, self.seat, self.seats, self.threads, self.idle_cores,
      self.recompute, self.optimizer, self.optimizer_options, self.rules, self.metrics,
      self.incarnation);
  }
};

struct stage_built {
  static constexpr auto declared = travels("stage_built");

  caf::strong_actor_ptr stage;  // a stage_actor
  std::string processor = {};   // see engine::processor_of_arithmetic; empty: a GPU's stage

  static void fields(auto& self, auto& f) { f(self.stage, self.processor); }
};

/// Where a slice of the model lives: a stage_actor, null beyond the model's ends, and its chunk.
/// May be the stage that is told.
struct neighbour {
  caf::strong_actor_ptr stage;
  std::uint32_t chunk = 0;

  static void fields(auto& self, auto& f) { f(self.stage, self.chunk); }
};

/// A parameter of a stage that is one weight with a parameter of another.
struct tied_parameter {
  std::string parameter;
  caf::strong_actor_ptr other;  // a stage_actor
  std::string other_parameter;

  static void fields(auto& self, auto& f) { f(self.parameter, self.other, self.other_parameter); }
};

/// The same stage of all replicas of the pipeline, and which one is told; empty: there is one. Each
/// stands for `logical` of the logical replicas, which a batch is shared out to.
struct replica_group {
  std::vector<caf::strong_actor_ptr> stages;  // stage_actors
  std::uint32_t own = 0;
  std::uint32_t logical = 1;
  // Each updates the parameters that it owns alone, and has the optimizer's state of no others.
  bool shares_state = false;
  engine::replica_sum_way sums = engine::replica_sum_way::links;
  std::string invitation = {};  // of collective_maker; empty: they sum over links
  engine::socket_reach sockets = engine::socket_reach::loopback;  // that it may use
  // Batch norm normalizes the micro-batches of one index in all logical replicas together.
  bool synced_norm = false;

  /// Whether one that is lost can be replaced alone: what they sum are messages between them, and
  /// no action waits for another replica.
  [[nodiscard]] bool is_replaceable() const {
    return stages.size() < 2 || (sums == engine::replica_sum_way::links && !synced_norm);
  }

  static void fields(auto& self, auto& f) {
    f(self.stages, self.own, self.logical, self.shares_state, self.sums, self.invitation,
      self.sockets, self.synced_norm);
  }
};

/// A group of two that moves tensors by a library of the stages' devices: what one stage sends
/// another one, in another process, on edges of one kind, whatever the chunks. The sender has rank
/// 0. One of the two begins each transfer first, and the other one when the first has announced it.
/// By NCCL that is the stage that comes first in the pipeline, so that no transfer waits on the GPU
/// of the second for anything that the first has still to begin (docs/gpu.md); by UCX the sender.
struct edge_port {
  caf::strong_actor_ptr other = {};       // a stage_actor
  engine::edge on = engine::edge::input;  // or gradient
  bool sends = false;                     // the stage that is told; else it receives
  bool receiver_first = false;            // the receiver begins first; else the sender
  std::uint64_t number = 0;               // the same at both ends, and of no other port
  engine::edge_transport by = engine::edge_transport::nccl;
  std::string name = {};        // for people: "activations from stage-0 to stage-1"
  std::string invitation = {};  // of collective_maker
  engine::socket_reach sockets = engine::socket_reach::loopback;  // that it may use

  static void fields(auto& self, auto& f) {
    f(self.other, self.on, self.sends, self.receiver_first, self.number, self.by, self.name,
      self.invitation, self.sockets);
  }
};

/// Asks a stage by what it can sum with its replicas, or send to others, beside links: what it has
/// of that library.
struct ask_sum_offer {
  static constexpr auto declared = travels("ask_sum_offer");

  engine::edge_transport by = engine::edge_transport::nccl;

  static void fields(auto& self, auto& f) { f(self.by); }
};

/// The answer: see engine::sum_offer.
struct sum_offered {
  static constexpr auto declared = travels("sum_offered");

  engine::sum_offer offer;

  static void fields(auto& self, auto& f) {
    f(self.offer.stage, self.offer.library, self.offer.why_not, self.offer.device,
      self.offer.machine, self.offer.network, self.offer.sockets);
  }
};

/// Asks a stage for an invitation of so many replicas, or of two neighbours, to a group of their
/// devices by a library, whose sockets may use so much of the network.
struct invite_replicas {
  static constexpr auto declared = travels("invite_replicas");

  std::uint32_t ranks = 0;
  engine::socket_reach sockets = engine::socket_reach::loopback;
  engine::edge_transport by = engine::edge_transport::nccl;

  static void fields(auto& self, auto& f) { f(self.ranks, self.sockets, self.by); }
};

struct replicas_invited {
  static constexpr auto declared = travels("replicas_invited");

  std::string invitation;  // whoever holds it may join

  static void fields(auto& self, auto& f) { f(self.invitation); }
};

/// Tells a stage the slices before and after each of its own, who feeds the model's two ends (a
/// feeder_actor), the credits of each edge, its number among the stages, its ties with others,
/// how the stages' steps are coupled, its replicas, who keeps its versions, and by which ports it
/// sends and receives.
struct connect_stage {
  static constexpr auto declared = travels("connect_stage");

  std::vector<neighbour> before, after;  // one per chunk
  caf::strong_actor_ptr feeder;
  std::uint32_t credits = engine::default_credits;
  stage_id place = {};
  std::vector<tied_parameter> ties = {};
  caf::strong_actor_ptr coordinator = {};  // a step_coordinator_actor; null: nothing couples them
  bool may_leave_out = false;              // see engine::step_end_rules
  bool clips_norm = false;
  replica_group replicas = {};
  std::vector<caf::strong_actor_ptr> keepers = {};  // keeper_actors of its versions; empty: none
  caf::strong_actor_ptr spare_keeper = {};  // the one that none replaces if it is lost; or null
  bool logs = false;  // it remembers what it sends: another stage may be lost and replaced
  std::vector<edge_port> ports = {};  // empty: its tensors go over links

  static void fields(auto& self, auto& f) {
    f(self.before, self.after, self.feeder, self.credits, self.place, self.ties, self.coordinator,
      self.may_leave_out, self.clips_norm, self.replicas, self.keepers, self.spare_keeper,
      self.logs, self.ports);
  }
};

using pipeline_messages = message_list<build_stage, stage_built, ask_sum_offer, sum_offered,
                                       invite_replicas, replicas_invited, connect_stage>;

}  // namespace troupe::actors
