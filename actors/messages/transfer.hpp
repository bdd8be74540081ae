#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "actors/transfer/piece.hpp"
#include "engine/state/file_identity.hpp"

/// Weights, optimizer state and the results of dry runs, from and to a stage, piece after piece
/// (see transfer/pieces.hpp).
namespace troupe::actors {

/// Weights and buffers to load, piece after piece: exactly those of the chunk, or with `partly`
/// some of them, while the others keep their values. A first piece discards a load that was not
/// finished.
struct load_weights {
  static constexpr auto declared = travels("load_weights");

  std::uint32_t chunk = 0;
  tensor_piece piece = {};
  bool partly = false;

  static void fields(auto& self, auto& f) { f(self.chunk, self.piece, self.partly); }
};

/// A file as another process may see it.
struct known_file {
  std::string name;
  engine::file_identity identity = {};

  static void fields(auto& self, auto& f) { f(self.name, self.identity); }
};

/// Safetensors files from which the stage loads its own tensors, if its process sees the same files
/// under these names: the weights and buffers of all its chunks, or its optimizer's state.
struct load_files {
  static constexpr auto declared = travels("load_files");

  std::vector<known_file> files = {};
  bool state = false;
  std::vector<std::string> except = {};  // weights that stay as they are, and have no state

  static void fields(auto& self, auto& f) { f(self.files, self.state, self.except); }
};

struct files_loaded {
  static constexpr auto declared = travels("files_loaded");

  bool seen = false;  // false: nothing was loaded

  static void fields(auto& self, auto& f) { f(self.seen); }
};

struct read_weights {
  static constexpr auto declared = travels("read_weights");

  std::uint32_t chunk = 0;
  list_place from = {};
  piece_limits most = {};

  static void fields(auto& self, auto& f) { f(self.chunk, self.from, self.most); }
};

/// Of a chunk's parameters and buffers in the model's order, as they are after the last update.
struct weights_piece : carried_piece {
  static constexpr auto declared = travels("weights_piece");
};

/// The state of a stage's optimizer to load, piece after piece, under the names of
/// optimizers/training/saved_state.hpp. It replaces the present state once the last piece is there.
struct load_state : carried_piece {
  static constexpr auto declared = travels("load_state");
};

struct read_state {
  static constexpr auto declared = travels("read_state");

  list_place from = {};
  piece_limits most = {};
  bool forms = false;  // no values: each part is an empty run of its tensor

  static void fields(auto& self, auto& f) { f(self.from, self.most, self.forms); }
};

/// Of a stage's optimizer state as it is after the last update.
struct kept_state : carried_piece {
  static constexpr auto declared = travels("kept_state");
};

/// Reads the results of the last dry run: the stage's gradients, one per parameter and undefined
/// where there is none, or its buffers as they were right after it; they have been restored since.
struct read_dry_run {
  static constexpr auto declared = travels("read_dry_run");

  bool buffers = false;
  list_place from = {};
  piece_limits most = {};

  static void fields(auto& self, auto& f) { f(self.buffers, self.from, self.most); }
};

struct dry_run_part : carried_piece {
  static constexpr auto declared = travels("dry_run_part");
};

/// Reads the model's outputs of the last evaluation without labels, a tensor per micro-batch, from
/// the stage of the last slice.
struct read_outputs {
  static constexpr auto declared = travels("read_outputs");

  list_place from = {};
  piece_limits most = {};

  static void fields(auto& self, auto& f) { f(self.from, self.most); }
};

struct outputs_piece : carried_piece {
  static constexpr auto declared = travels("outputs_piece");
};

using transfer_messages =
    message_list<load_files, files_loaded, read_outputs, outputs_piece, load_weights, read_weights,
                 weights_piece, load_state, read_state, kept_state, read_dry_run, dry_run_part>;

}  // namespace troupe::actors
