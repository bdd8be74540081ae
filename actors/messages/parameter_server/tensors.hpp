#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "actors/transfer/piece.hpp"
#include "engine/parameter_server/batch.hpp"

/// How messages of a parameter server carry gradients or values of some parameters, and what
/// workers must know of each; docs/parameter_server.md tells the story.
namespace troupe::actors {

/// How large a message of gradients or values may be: what fits in `frame` goes in one, so that it
/// can be lent, and what does not is cut into pieces.
struct batch_limits {
  piece_limits frame = {.bytes = std::uint64_t{3} << 30, .tensors = 2000};
  piece_limits piece = {};

  static void fields(auto& self, auto& f) { f(self.frame, self.piece); }
};

/// A directory as two tensors: a message's header could not hold that of thousands of parameters.
struct packed_directory {
  at::Tensor names;    // [bytes] u8, one after another
  at::Tensor numbers;  // [n] i64, of each parameter what its fields are

  [[nodiscard]] static packed_directory pack(
      const std::vector<engine::parameter_entry>& parameters);
  /// What does not come from `pack` is a std::invalid_argument.
  [[nodiscard]] std::vector<engine::parameter_entry> unpack() const;

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

}  // namespace troupe::actors
