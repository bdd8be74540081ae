#pragma once

#include <caf/actor_control_block.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "actors/transfer/piece.hpp"
#include "engine/base/named_tensor.hpp"
#include "engine/slices/summed_file.hpp"

/// A stage's files of a checkpoint, which its own process writes.
namespace troupe::actors {

/// Has a stage write what it is after the training step of this number, which is the last that was
/// begun, for it comes on the way of run_stage and in that order: its weights and its optimizer's
/// state into files of a folder, each where a name is given and there are such tensors.
struct write_slice {
  static constexpr auto declared = travels("write_slice");

  std::uint64_t step = 0;
  std::string folder = {};   // of the trainer's making, under a name that nobody else has used
  std::string weights = {};  // names of files; empty: they are another stage's
  std::string state = {};

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.step, self.folder, self.weights, self.state);
  }
};

/// Its answer, once the files are on the disk.
struct slice_written {
  static constexpr auto declared = travels("slice_written");

  std::map<std::string, engine::file_sums> files = {};  // by name
  /// The process does not see the folder: a slice_writer_actor that keeps the tensors until they
  /// have been read. Null: the files are written.
  caf::strong_actor_ptr keeper = {};

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.files, self.keeper);
  }
};

/// Reads a slice that could not be written where it is: its weights, or its state, which come last.
struct read_slice {
  static constexpr auto declared = travels("read_slice");

  std::uint64_t step = 0;
  bool state = false;
  list_place from = {};
  piece_limits most = {};
  bool forms = false;  // no values: each part is an empty run of its tensor

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.step, self.state, self.from, self.most, self.forms);
  }
};

struct slice_piece {
  static constexpr auto declared = travels("slice_piece");

  tensor_piece piece = {};

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.piece);
  }
};

/// The slice as it is to be written: from a stage to its writer, never between nodes. The tensors
/// are written no more.
struct store_slice {
  static constexpr auto declared = stays_here;

  write_slice what = {};
  std::vector<engine::named_tensor> tensors = {};
};

using slice_messages =
    message_list<write_slice, slice_written, read_slice, slice_piece, store_slice>;

}  // namespace troupe::actors
