#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// Lists of named tensors that are too large for one message travel in pieces. These are the parts
/// of messages that carry one; what cuts and assembles them is in pieces.hpp.
namespace troupe::actors {

/// What one piece holds at most. A tensor of more bytes is cut.
struct piece_limits {
  std::uint64_t bytes = std::uint64_t{256} << 20;
  std::uint32_t tensors = 1024;

  static void fields(auto& self, auto& f) { f(self.bytes, self.tensors); }
};

/// A place in a list: one of its tensors, and an element of that tensor's storage.
struct list_place {
  std::uint64_t tensor = 0;
  std::uint64_t element = 0;

  auto operator<=>(const list_place&) const = default;

  static void fields(auto& self, auto& f) { f(self.tensor, self.element); }
};

/// Where the elements of a part lie in a larger tensor.
struct storage_range {
  std::vector<std::int64_t> shape;    // of the whole tensor
  std::vector<std::int64_t> strides;  // the same, in elements; dense
  std::uint64_t first = 0;            // element of its storage

  static void fields(auto& self, auto& f) { f(self.shape, self.strides, self.first); }
};

/// A tensor under its full name, or with `range` a run of its elements as they lie in memory.
struct tensor_part {
  std::string name;
  at::Tensor tensor;  // may be undefined, as in the list; [n] with a range
  std::optional<storage_range> range = {};

  static void fields(auto& self, auto& f) { f(self.name, self.tensor, self.range); }
};

/// A run of a list of named tensors, in its order.
struct tensor_piece {
  list_place begin;
  std::vector<tensor_part> parts = {};
  bool last = false;  // nothing of the list follows

  static void fields(auto& self, auto& f) { f(self.begin, self.parts, self.last); }
};

/// What a message holds that carries a piece and nothing else.
struct carried_piece {
  tensor_piece piece = {};

  static void fields(auto& self, auto& f) { f(self.piece); }
};

}  // namespace troupe::actors
