#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/transfer/piece.hpp"
#include "engine/state/tensor_reader.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Tensors of a file, in pieces for a process that does not see it: read when they are asked for,
/// so that no more than a piece is in memory. Used by one thread.
class file_pieces {
 public:
  /// `names`: in the file.
  file_pieces(std::shared_ptr<const engine::tensor_reader> file, std::vector<std::string> names,
              const actors::piece_limits& most)
      : file_(std::move(file)), names_(std::move(names)), most_(most) {}

  /// The next piece, up to the last one. Errors: bad_data, of reading.
  [[nodiscard]] result<actors::tensor_piece> next();

 private:
  /// What of the tensor at `at_` goes into a piece with so much room left.
  [[nodiscard]] result<actors::tensor_part> part(const engine::safetensors_entry& of,
                                                 std::uint64_t room);

  std::shared_ptr<const engine::tensor_reader> file_;
  std::vector<std::string> names_;
  actors::piece_limits most_;
  actors::list_place at_;
};

}  // namespace troupe::cluster
