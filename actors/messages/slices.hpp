#pragma once

#include <caf/actor_control_block.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/transfer/piece.hpp"
#include "engine/slices/snapshot.hpp"
#include "engine/slices/summed_file.hpp"

/// A stage's files of a checkpoint, which its own process writes.
namespace troupe::actors {

/// Has a stage write its state after the training step of this number into files of a folder: its
/// weights and its optimizer's state, each if a file name is given and there are such tensors. That
/// step is the last that was begun, since this message is sent in order with run_stage.
struct write_slice {
  static constexpr auto declared = travels("write_slice");

  std::uint64_t step = 0;
  std::string folder = {};   // of the trainer's making, under a name that nobody else has used
  std::string weights = {};  // names of files; empty: they are another stage's
  std::string state = {};
  bool is_own = false;  // the folder is on the host's own disk, and is made there

  static void fields(auto& self, auto& f) {
    f(self.step, self.folder, self.weights, self.state, self.is_own);
  }
};

/// Its answer, once the files are on the disk.
struct slice_written {
  static constexpr auto declared = travels("slice_written");

  std::map<std::string, engine::file_sums> files = {};  // by name
  /// The process does not see the folder: a slice_writer_actor that keeps the tensors until they
  /// have been read. Null: the files are written.
  caf::strong_actor_ptr keeper = {};

  static void fields(auto& self, auto& f) { f(self.files, self.keeper); }
};

/// Reads a slice that its own process could not write: its weights, or with `state` its optimizer's
/// state.
struct read_slice {
  static constexpr auto declared = travels("read_slice");

  std::uint64_t step = 0;
  bool state = false;
  list_place from = {};
  piece_limits most = {};
  bool forms = false;  // no values: each part is an empty run of its tensor

  static void fields(auto& self, auto& f) {
    f(self.step, self.state, self.from, self.most, self.forms);
  }
};

struct slice_piece : carried_piece {
  static constexpr auto declared = travels("slice_piece");
};

/// The slice to write: from a stage to its writer, never between nodes. It has the tensors for
/// which the order names a file, each of which is read once.
struct store_slice {
  static constexpr auto declared = stays_here;

  write_slice what = {};
  engine::shown_tensors tensors = {};
};

/// Has a node keep slices of checkpoints, and copies of another host's slices, in a folder on its
/// host's own disk.
struct open_slices {
  static constexpr auto declared = travels("open_slices");

  std::string folder = {};
  std::string run = {};  // a word that tells this run from all others

  static void fields(auto& self, auto& f) { f(self.folder, self.run); }
};

struct slices_opened {
  static constexpr auto declared = travels("slices_opened");

  caf::strong_actor_ptr store = {};  // a slice_store_actor
  std::string folder = {};           // absolute
  std::string disk = {};             // the same word for all processes that see this folder
  std::string host = {};             // as the system calls it
  bool is_taken = false;             // another run that has not ended has it: no store, no disk
  std::uint64_t free_bytes = 0;      // on the disk; the most there is where that is not known

  static void fields(auto& self, auto& f) {
    f(self.store, self.folder, self.disk, self.host, self.is_taken, self.free_bytes);
  }
};

/// Compares every byte of a checkpoint's files on this host with what was written, and looks for
/// NaN and infinity.
struct check_slices {
  static constexpr auto declared = travels("check_slices");

  std::string checkpoint = {};  // the name of its folder
  std::map<std::string, engine::file_sums> files = {};

  static void fields(auto& self, auto& f) { f(self.checkpoint, self.files); }
};

struct slices_checked {
  static constexpr auto declared = travels("slices_checked");

  std::map<std::string, known_file> whole = {};    // by name
  std::map<std::string, std::string> faults = {};  // what is wrong with the others, a sentence each

  static void fields(auto& self, auto& f) { f(self.whole, self.faults); }
};

/// Has a node copy a file from another node's store and keep the copy.
struct copy_slice {
  static constexpr auto declared = travels("copy_slice");

  std::string checkpoint = {};
  std::string name = {};
  engine::file_sums sums = {};
  caf::strong_actor_ptr from = {};  // a slice_store_actor

  static void fields(auto& self, auto& f) { f(self.checkpoint, self.name, self.sums, self.from); }
};

struct slice_copied {
  static constexpr auto declared = travels("slice_copied");

  known_file file = {};

  static void fields(auto& self, auto& f) { f(self.file); }
};

/// Reads bytes of a file on another node. The answer has them as a run of a tensor of bytes.
struct read_slice_file {
  static constexpr auto declared = travels("read_slice_file");

  std::string checkpoint = {};
  std::string name = {};
  std::uint64_t first = 0;  // byte
  std::uint64_t most = 0;   // bytes

  static void fields(auto& self, auto& f) { f(self.checkpoint, self.name, self.first, self.most); }
};

/// Removes an owner's checkpoints on this host, except these and those of steps after `newest`.
struct keep_slices {
  static constexpr auto declared = travels("keep_slices");

  std::string owner = {};  // a word for the trainer's folder
  std::vector<std::string> checkpoints = {};
  std::uint64_t newest = 0;

  static void fields(auto& self, auto& f) { f(self.owner, self.checkpoints, self.newest); }
};

/// Has a node keep the manifest of a complete checkpoint beside its files.
struct keep_manifest {
  static constexpr auto declared = travels("keep_manifest");

  std::string checkpoint = {};
  std::string text = {};

  static void fields(auto& self, auto& f) { f(self.checkpoint, self.text); }
};

struct list_manifests {
  static constexpr auto declared = travels("list_manifests");

  std::string owner = {};

  static void fields(auto& self, auto& f) { f(self.owner); }
};

struct manifests_kept {
  static constexpr auto declared = travels("manifests_kept");

  std::map<std::string, std::string> texts = {};  // by checkpoint

  static void fields(auto& self, auto& f) { f(self.texts); }
};

using slice_messages =
    message_list<write_slice, slice_written, read_slice, slice_piece, store_slice, open_slices,
                 slices_opened, check_slices, slices_checked, copy_slice, slice_copied,
                 read_slice_file, keep_slices, keep_manifest, list_manifests, manifests_kept>;

}  // namespace troupe::actors
