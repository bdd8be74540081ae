#pragma once

#include <caf/actor_control_block.hpp>
#include <cstdint>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "actors/transfer/piece.hpp"
#include "engine/base/named_tensor.hpp"
#include "engine/slices/snapshot.hpp"
#include "engine/step/step_key.hpp"

/// Versions of stages: what a stage was after an update, kept in other places than the stage, so
/// that a run can go on from there.
namespace troupe::actors {

/// Has a node keep versions.
struct open_keeper {
  static constexpr auto declared = travels("open_keeper");
};

struct keeper_opened {
  static constexpr auto declared = travels("keeper_opened");

  caf::strong_actor_ptr keeper;  // a keeper_actor

  static void fields(auto& self, auto& f) { f(self.keeper); }
};

/// Ends the stages that were built on the node.
struct drop_stages {
  static constexpr auto declared = travels("drop_stages");
};

/// A piece of a stage's version, to keep: weights, buffers and the optimizer's state under their
/// own names. The version is kept once the last piece is there. Refused once a later incarnation of
/// the stage has sent a piece, with errc::stale.
struct store_version {
  static constexpr auto declared = travels("store_version");
  static constexpr bool tensors_are_only_read = true;

  std::uint32_t stage = 0;        // among those of all replicas
  std::uint64_t step = 0;         // training steps that it has behind it
  std::uint32_t incarnation = 0;  // of the sender, see build_stage
  tensor_piece piece = {};

  static void fields(auto& self, auto& f) {
    f(self.stage, self.step, self.incarnation, self.piece);
  }
};

struct list_versions {
  static constexpr auto declared = travels("list_versions");

  std::uint32_t stage = 0;

  static void fields(auto& self, auto& f) { f(self.stage); }
};

struct versions_kept {
  static constexpr auto declared = travels("versions_kept");

  std::vector<std::uint64_t> steps;  // of whole versions, rising

  static void fields(auto& self, auto& f) { f(self.steps); }
};

struct fetch_version {
  static constexpr auto declared = travels("fetch_version");

  std::uint32_t stage = 0;
  std::uint64_t step = 0;
  list_place from = {};
  piece_limits most = {};

  static void fields(auto& self, auto& f) { f(self.stage, self.step, self.from, self.most); }
};

struct version_piece : carried_piece {
  static constexpr auto declared = travels("version_piece");
};

/// Has a stage store what it is now, as the version of so many training steps, with its keepers.
struct take_version {
  static constexpr auto declared = travels("take_version");

  std::uint64_t step = 0;

  static void fields(auto& self, auto& f) { f(self.step); }
};

/// Has a stage become what a version says, which a keeper has under the stage's number.
struct adopt_version {
  static constexpr auto declared = travels("adopt_version");

  caf::strong_actor_ptr keeper;  // a keeper_actor
  std::uint32_t stage = 0;
  std::uint64_t step = 0;

  static void fields(auto& self, auto& f) { f(self.keeper, self.stage, self.step); }
};

/// Another stage has taken the place of a lost one, and does its part of all steps from one on
/// again, except evaluation steps that all stages have done; another keeper has taken the place of
/// that in the lost process. The new stage has been told of the steps by then, and is sent nothing
/// but tied gradients before `resume_edges`.
struct replace_neighbour {
  static constexpr auto declared = travels("replace_neighbour");

  caf::strong_actor_ptr lost, by;             // stage_actors
  engine::step_key from = {};                 // the first step that is done again
  engine::step_key done_before = {};          // all stages have answered the steps before this one
  caf::strong_actor_ptr lost_keeper, keeper;  // keeper_actors

  static void fields(auto& self, auto& f) {
    f(self.lost, self.by, self.from.epoch, self.from.step, self.done_before.epoch,
      self.done_before.step, self.lost_keeper, self.keeper);
  }
};

/// Whoever read the batches is lost, with its feeder, and another feeder takes its place: it sends
/// the inputs and the labels of all steps from one on once more, except evaluation steps that all
/// stages have done. To a stage of the model's first or last slice, which is sent nothing by it
/// before that has answered.
struct replace_feeder {
  static constexpr auto declared = travels("replace_feeder");

  caf::strong_actor_ptr by;           // a feeder_actor
  engine::step_key from = {};         // the first step that is fed again
  engine::step_key done_before = {};  // all stages have answered the steps before this one

  static void fields(auto& self, auto& f) {
    f(self.by, self.from.epoch, self.from.step, self.done_before.epoch, self.done_before.step);
  }
};

/// All stages and feeders know the new stage: what it needs may be sent to it.
struct resume_edges {
  static constexpr auto declared = travels("resume_edges");
};

/// Steps before `first` are not done again, nor are these. From the pipeline to its feeders.
struct forget_fed {
  static constexpr auto declared = travels("forget_fed");

  struct evaluation_step {
    engine::step_key key;

    static void fields(auto& self, auto& f) { f(self.key.epoch, self.key.step); }
  };

  engine::step_key first = {};
  std::vector<evaluation_step> evaluations = {};

  static void fields(auto& self, auto& f) {
    f(self.first.epoch, self.first.step, self.evaluations);
  }
};

/// Shows a stage's parameters and their optimizer's state, under the names of
/// optimizers/training/saved_state.hpp, and copies them if keepers are to have them too. From a
/// stage to its optimizer, never between nodes.
struct copy_state {
  static constexpr auto declared = stays_here;

  std::uint64_t step = 0;
  bool for_keepers = true;  // in other processes of this machine, which borrow the copies
  bool digested = false;    // the digest of the copies is wanted too
};

/// What an optimizer has, before it copies any of it, for whoever writes it. Never between nodes.
struct state_shown {
  static constexpr auto declared = stays_here;

  std::uint64_t step = 0;
  engine::shown_tensors tensors = {};
};

/// Nothing, but for keepers.
struct state_copied {
  static constexpr auto declared = stays_here;

  std::vector<engine::named_tensor> tensors = {};
  std::uint64_t digest = 0;   // of them, if it was wanted (see digest_of)
  std::uint64_t updates = 0;  // that the optimizer has made
};

/// Copies of a stage's buffers after a step: from its work thread to its actor, never between
/// nodes.
struct buffers_copied {
  static constexpr auto declared = stays_here;

  std::uint64_t step = 0;
  std::vector<engine::named_tensor> tensors = {};
};

using recovery_messages =
    message_list<open_keeper, keeper_opened, drop_stages, store_version, list_versions,
                 versions_kept, fetch_version, version_piece, take_version, adopt_version,
                 replace_neighbour, replace_feeder, resume_edges, forget_fed, copy_state,
                 state_shown, state_copied, buffers_copied>;

}  // namespace troupe::actors
