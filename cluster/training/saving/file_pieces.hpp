#pragma once

#include <string>
#include <vector>

#include "actors/transfer/piece.hpp"
#include "engine/state/tensor_reader.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Tensors of files, in pieces for a process that does not see the files. Each piece is read when
/// it is asked for, so that no more than one is in memory. Used by one thread.
class file_pieces {
 public:
  /// `names`: in the files.
  file_pieces(engine::tensor_files files, std::vector<std::string> names,
              const actors::piece_limits& most)
      : files_(std::move(files)), names_(std::move(names)), most_(most) {}

  /// The next piece, up to the last one. Errors: bad_data, of reading.
  [[nodiscard]] result<actors::tensor_piece> next();

 private:
  /// What of the tensor at `at_` goes into a piece with so much room left.
  [[nodiscard]] result<actors::tensor_part> part(const engine::tensor_place& which,
                                                 std::uint64_t room);

  engine::tensor_files files_;
  std::vector<std::string> names_;
  actors::piece_limits most_;
  actors::list_place at_;
};

}  // namespace troupe::cluster
