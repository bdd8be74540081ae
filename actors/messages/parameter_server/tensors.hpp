#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "actors/transfer/piece.hpp"

/// What messages of a parameter server carry: gradients or values of some parameters, and
/// what workers must know of each. Parameters are named by their index in their shard's directory
/// (see joined); docs/parameter_server.md tells the story.
namespace troupe::actors {

/// How large a message of gradients or values may be: what fits in `frame` goes in one, so that it
/// can be lent, and what does not is cut into pieces.
struct batch_limits {
  piece_limits frame = {.bytes = std::uint64_t{3} << 30, .tensors = 2000};
  piece_limits piece = {};

  static void fields(auto& self, auto& f) { f(self.frame, self.piece); }
};

/// Gradients or values of some parameters of one shard. Small ones lie one after another in one
/// tensor, so that a thousand biases are one piece on the wire.
struct tensor_batch {
  struct entry {
    std::uint32_t parameter = 0;
    at::Tensor rows;    // [r] i64: the values are those of these rows; undefined: of all
    at::Tensor values;  // the parameter's shape, or [r, ...]

    static void fields(auto& self, auto& f) { f(self.parameter, self.rows, self.values); }
  };
  /// A run of what is too large for a piece: of a dense parameter's elements, or of the rows given.
  struct run {
    std::uint32_t parameter = 0;
    std::uint64_t first = 0;
    std::uint64_t count = 0;  // in the whole
    at::Tensor rows;          // [r] i64; undefined: dense
    at::Tensor values;        // [n], or [r, ...]

    static void fields(auto& self, auto& f) {
      f(self.parameter, self.first, self.count, self.rows, self.values);
    }
  };
  std::vector<std::uint32_t> packed;  // parameters whose values lie in `values`, in this order
  at::Tensor values;                  // [sum of their sizes] f32 or bf16; undefined: none
  std::vector<entry> entries;
  std::vector<run> runs = {};  // in pieces alone

  static void fields(auto& self, auto& f) { f(self.packed, self.values, self.entries, self.runs); }
};

/// A parameter of a shard, as workers must know it; or so many rows of one, the others of which are
/// at other shards.
struct parameter_entry {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int32_t dtype = 0;  // at::ScalarType
  bool by_rows = false;    // gradients are rows, and each row is updated as a parameter of its own
  std::int64_t first_row = 0;  // where in the whole parameter these rows begin

  static void fields(auto& self, auto& f) {
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

/// A parameter that a shard is to own, or some rows of one, and its first values.
struct owned_parameter {
  std::string name;
  at::Tensor values;
  bool by_rows = false;        // see parameter_entry
  std::int64_t first_row = 0;  // the same
};

}  // namespace troupe::actors
