#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/messages/declaration.hpp"

/// What a process that outlives the trainer is told for another one.
namespace troupe::actors {

/// Behind a step that is done: what another trainer has to know to go on from the versions of this
/// step. From the trainer to the node that outlives it.
struct note_step {
  static constexpr auto declared = travels("note_step");

  std::uint64_t step = 0;       // training steps that are done
  std::uint64_t evaluated = 0;  // as many of them are evaluated
  std::string slices;           // how the model is cut, in the trainer's words
  double loss_scale = 0;        // of the next step, where it is dynamic
  std::uint32_t applied = 0;    // see engine::loss_scaler

  static void fields(auto& self, auto& f) {
    f(self.step, self.evaluated, self.slices, self.loss_scale, self.applied);
  }
};

struct list_notes {
  static constexpr auto declared = travels("list_notes");
};

struct notes_kept {
  static constexpr auto declared = travels("notes_kept");

  std::vector<note_step> notes;  // of the last steps, rising

  static void fields(auto& self, auto& f) { f(self.notes); }
};

/// The run goes on from elsewhere: all versions and notes are forgotten, which may be of a model
/// that was cut otherwise. From the trainer to the node that has outlived another one, before there
/// are stages; within the node from its host to its keeper.
struct forget_kept {
  static constexpr auto declared = travels("forget_kept");
};

using note_messages = message_list<note_step, list_notes, notes_kept, forget_kept>;

}  // namespace troupe::actors
