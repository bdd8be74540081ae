#pragma once

#include <ATen/core/Tensor.h>

#include <caf/actor_control_block.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "actors/protocol.hpp"
#include "engine/parameter_server/push.hpp"
#include "optimizers/schedule.hpp"

/// What the actors of a parameter server say to each other; docs/parameter_server.md tells the
/// story. Parameters are named by their index in their shard's directory (see joined).
namespace troupe::actors {

/// How large a message of gradients or values may be: what fits in `frame` goes in one, so that it
/// can be lent, and what does not is cut into pieces.
struct batch_limits {
  piece_limits frame = {.bytes = std::uint64_t{3} << 30, .tensors = 2000};
  piece_limits piece = {};

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.frame, self.piece);
  }
};

/// Gradients or values of some parameters of one shard. Small ones lie one after another in one
/// tensor, so that a thousand biases are one piece on the wire.
struct tensor_batch {
  struct entry {
    std::uint32_t parameter = 0;
    at::Tensor rows;    // [r] i64: the values are those of these rows; undefined: of all
    at::Tensor values;  // the parameter's shape, or [r, ...]

    template <class Self, class Fields>
    static void fields(Self& self, Fields& f) {
      f(self.parameter, self.rows, self.values);
    }
  };
  /// A run of what is too large for a piece: of a dense parameter's elements, or of the rows given.
  struct run {
    std::uint32_t parameter = 0;
    std::uint64_t first = 0;
    std::uint64_t count = 0;  // in the whole
    at::Tensor rows;          // [r] i64; undefined: dense
    at::Tensor values;        // [n], or [r, ...]

    template <class Self, class Fields>
    static void fields(Self& self, Fields& f) {
      f(self.parameter, self.first, self.count, self.rows, self.values);
    }
  };
  std::vector<std::uint32_t> packed;  // parameters whose values lie in `values`, in this order
  at::Tensor values;                  // [sum of their sizes] f32 or bf16; undefined: none
  std::vector<entry> entries;
  std::vector<run> runs = {};  // in pieces alone

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.packed, self.values, self.entries, self.runs);
  }
};

/// A worker wants in. `presence`: an actor of its process that lives as long as it is a member.
struct join_server {
  std::uint32_t rank = 0;  // its place in the order of adding up; unique among members
  caf::strong_actor_ptr presence;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.rank, self.presence);
  }
};

/// A parameter of a shard, as workers must know it; or so many rows of one, the others of which are
/// at other shards.
struct parameter_entry {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int32_t dtype = 0;  // at::ScalarType
  bool by_rows = false;    // gradients are rows, and each row is updated as a parameter of its own
  std::int64_t first_row = 0;  // where in the whole parameter these rows begin

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.name, self.shape, self.dtype, self.by_rows, self.first_row);
  }
};

/// A directory as two tensors: a message's header could not hold that of thousands of parameters.
struct packed_directory {
  at::Tensor names;    // [bytes] u8, one after another
  at::Tensor numbers;  // [n] i64, of each parameter what its fields are

  [[nodiscard]] static packed_directory pack(const std::vector<parameter_entry>& parameters);
  /// What does not come from `pack` is a std::invalid_argument.
  [[nodiscard]] std::vector<parameter_entry> unpack() const;

  /// As a member of a message, instead of the list itself.
  template <class List, class Fields>
  static void fields_of(List& parameters, Fields& f) {
    if constexpr (std::is_const_v<List>) {
      const auto packed = pack(parameters);
      f(packed.names, packed.numbers);
    } else {
      packed_directory packed;
      f(packed.names, packed.numbers);
      parameters = packed.unpack();
    }
  }
};

struct shard_entry {
  caf::strong_actor_ptr shard;  // a shard_actor
  std::vector<parameter_entry> parameters;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.shard);
    packed_directory::fields_of(self.parameters, f);
  }
};

struct joined {
  engine::worker_id worker;
  std::vector<shard_entry> shards;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.worker, self.shards);
  }
};

struct leave_server {
  engine::worker_id worker;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.worker);
  }
};

/// A worker's gradients of one shard's parameters, perhaps of none: every push has a part at every
/// shard. Parameters that are left out had no gradient. A part that does not fit into one message
/// comes in pieces, in order: the shard keeps them, answers each with an empty `pushed`, and makes
/// nothing of them before the last.
struct push_gradients {
  static constexpr bool tensors_are_only_read = true;
  engine::based_push what;  // base: the oldest version among what they were computed with
  tensor_batch gradients;
  bool pull = false;                             // the answer is to bring values
  std::optional<param_version> newer_than = {};  // what has changed since; nullopt: all
  batch_limits most = {};                        // of the answer
  std::uint32_t piece = 0;                       // its number
  bool last = true;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.what.push.worker, self.what.push.sequence, self.what.base, self.gradients, self.pull,
      self.newer_than, self.most, self.piece, self.last);
  }
};

/// The push is part of update `applied`. With `more`, `values` are the first piece of what was
/// asked for, and the shard keeps the rest for this worker: see pull_parameters.
struct pushed {
  static constexpr bool tensors_are_only_read = true;
  param_version applied;
  param_version version;  // of `values`
  tensor_batch values;
  bool more = false;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.applied, self.version, self.values, self.more);
  }
};

struct pull_parameters {
  std::vector<std::uint32_t> wanted;        // empty: all
  std::optional<param_version> newer_than;  // what has changed since; nullopt: whether or not
  engine::worker_id worker = {};            // a member, where the answer may be in pieces
  batch_limits most = {};
  std::uint32_t piece = 0;  // from 1: of the answer that the worker got last, and nothing else

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.wanted, self.newer_than, self.worker, self.most, self.piece);
  }
};

/// What was asked for, as it is after update `version`; with `more`, a piece of it.
struct pulled {
  static constexpr bool tensors_are_only_read = true;
  param_version version;
  tensor_batch values;
  bool more = false;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.version, self.values, self.more);
  }
};

/// Tells a shard its place and its ledger, whose orders it follows from then on.
struct connect_shard {
  std::uint32_t index = 0;
  caf::strong_actor_ptr ledger;  // a ledger_actor
  engine::server_mode mode = engine::server_mode::synchronous;
  std::uint64_t staleness = 0;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.index, self.ledger, self.mode, self.staleness);
  }
};

/// What a shard owns.
struct shard_directory {
  std::vector<parameter_entry> parameters;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    packed_directory::fields_of(self.parameters, f);
  }
};

struct admit_worker {
  engine::worker_id worker;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.worker);
  }
};

struct expel_worker {
  engine::worker_id worker;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.worker);
  }
};

/// A shard holds its part of a push; `fault`, unless empty, is what is wrong with it.
struct staged_push {
  std::uint32_t shard = 0;
  engine::based_push what;
  errc code = errc::bad_data;
  std::string fault;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.shard, self.what.push.worker, self.what.push.sequence, self.what.base, self.code,
      self.fault);
  }
};

/// The ledger's order: the mean of these pushes is the next update.
struct apply_pushes {
  param_version version;
  std::vector<engine::worker_id> workers;
  std::vector<std::uint64_t> sequences;
  std::vector<param_version> bases;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.version, self.workers, self.sequences, self.bases);
  }
};

struct refuse_push {
  engine::push_id push;
  errc code = errc::stale;
  std::string text;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.push.worker, self.push.sequence, self.code, self.text);
  }
};

/// Asks for a report as soon as members are as few as that: of those that are lost nothing is
/// decided any more by then.
struct read_ledger {
  std::uint64_t members_at_most = std::numeric_limits<std::int64_t>::max();

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.members_at_most);
  }
};

/// How all pushes so far were decided.
struct ledger_report {
  param_version version;
  std::uint64_t members = 0;
  std::uint64_t applied = 0;
  std::uint64_t refused = 0;
  std::uint64_t discarded = 0;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.version, self.members, self.applied, self.refused, self.discarded);
  }
};

/// How a shard's learning rate moves over so many updates.
struct rate_plan {
  optimizers::rate_schedule schedule;
  std::uint64_t updates = 0;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    auto& [curve, warmup, end, step_every, step_factor, power, peak, start] = self.schedule;
    f(curve, warmup, end, step_every, step_factor, power, peak, start, self.updates);
  }
};

/// A parameter that a shard is to own, or some rows of one, and its first values.
struct owned_parameter {
  std::string name;
  at::Tensor values;
  bool by_rows = false;        // see parameter_entry
  std::int64_t first_row = 0;  // the same
};

/// The first values of a shard's parameters, under their names and in their order, piece after
/// piece. Before its build_shard; a piece from the beginning on starts anew.
struct shard_values {
  std::string name;  // the shard's
  tensor_piece piece = {};

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.name, self.piece);
  }
};

/// Makes a shard on the node that gets it, of the values that came before.
struct build_shard {
  std::string name;
  std::vector<parameter_entry> parameters;
  std::string optimizer;
  std::map<std::string, double> optimizer_options;
  rate_plan rate = {};
  std::int32_t threads = 1;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.name, self.optimizer, self.optimizer_options, self.rate, self.threads);
    packed_directory::fields_of(self.parameters, f);
  }
};

struct shard_built {
  caf::strong_actor_ptr shard;  // a shard_actor

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.shard);
  }
};

/// Makes the ledger of these shards (shard_actors), wherever they live.
struct open_ledger {
  std::vector<caf::strong_actor_ptr> shards;
  engine::server_mode mode = engine::server_mode::synchronous;
  std::uint64_t staleness = 0;
  std::uint32_t expected_workers = 1;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.shards, self.mode, self.staleness, self.expected_workers);
  }
};

struct ledger_opened {
  caf::strong_actor_ptr ledger;  // a ledger_actor

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.ledger);
  }
};

/// Makes a worker that joins the parameter server.
struct build_worker {
  std::uint32_t rank = 0;
  caf::strong_actor_ptr ledger;  // a ledger_actor
  bool bf16_gradients = false;
  std::string model;
  std::string data;  // a source that the node can open
  std::int64_t image_size = 0;
  std::int64_t classes = 0;  // 0: as the data has
  std::uint64_t seed = 0;
  std::string loss;
  bool strict = false;
  std::int32_t threads = 1;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.rank, self.ledger, self.bf16_gradients, self.model, self.data, self.image_size,
      self.classes, self.seed, self.loss, self.strict, self.threads);
  }
};

struct worker_built {
  caf::strong_actor_ptr worker;  // a worker_actor

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.worker);
  }
};

/// A worker's share of a step: these samples forward, backward, pushed and pulled; or, to evaluate,
/// only forward with the newest parameters.
struct run_share {
  std::uint64_t step = 0;
  bool evaluate = false;  // with samples of the test split
  at::Tensor samples;     // [n] i64

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.step, self.evaluate, self.samples);
  }
};

struct share_done {
  std::uint64_t step = 0;
  std::int64_t samples = 0;  // without those that could not be read
  double loss = 0;           // mean
  std::int64_t correct = 0;  // evaluation
  double busy_s = 0;         // of arithmetic
  std::uint64_t stale = 0;   // pushes that were refused as too stale before one was applied
  std::uint64_t peak_memory_bytes = 0;
  // The parameter server's error, if it ended the share: the worker itself is well.
  errc code = errc::peer_lost;
  std::string failure;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.step, self.samples, self.loss, self.correct, self.busy_s, self.stale,
      self.peak_memory_bytes, self.code, self.failure);
  }
};

/// What has changed since `newer_than`, as it is after update `version`.
struct fresh_batch {
  std::optional<param_version> newer_than;
  param_version version;
  tensor_batch values;
};

/// An update is over, and what its pushers asked for was read: from a shard's work thread to its
/// actor, never between nodes.
struct shard_updated {
  std::optional<error> failure;
  std::vector<fresh_batch> fresh;
};

/// Values for an answer, or why there are none: as above.
struct values_ready {
  std::uint64_t ticket = 0;
  param_version version;
  tensor_batch values;
  std::optional<error> failure;
};

/// What a worker's thread has done for a request: to its actor, never between nodes.
struct share_outcome {
  std::uint64_t ticket = 0;
  share_done report;
  std::optional<tensor_piece> weights;  // of read_weights
};

/// Registers every message above that travels between processes.
void add_parameter_server_protocol(message_registry& registry);

}  // namespace troupe::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::join_server)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::joined)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::leave_server)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::push_gradients)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::pushed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::pull_parameters)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::pulled)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::connect_shard)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::shard_directory)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::admit_worker)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::expel_worker)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::staged_push)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::apply_pushes)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::refuse_push)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::read_ledger)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::ledger_report)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::shard_updated)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::values_ready)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::shard_values)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::build_shard)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::shard_built)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::open_ledger)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::ledger_opened)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::build_worker)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::worker_built)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::run_share)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::share_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::share_outcome)
