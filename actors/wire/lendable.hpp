#pragma once

#include <cstddef>
#include <memory>

#include "messages/link/shared_memory.hpp"

namespace troupe::actors {

/// Smaller tensors are not worth a loan and its return.
inline constexpr std::size_t least_lendable = 64 * 1024;  // bytes

/// While it lives, the CPU tensors of at least `least_lendable` bytes that its thread makes lie in
/// `memory`, a node's (see node::memory), which lends them to processes of this machine instead of
/// copying them. Where there is no room, or with null, tensors lie where they always do. Scopes
/// nest. Used by one thread.
///
/// A tensor that was sent may be written again when nobody else holds its storage.
class lendable_tensors {
 public:
  explicit lendable_tensors(std::shared_ptr<messages::shared_memory> memory);
  lendable_tensors(const lendable_tensors&) = delete;
  lendable_tensors& operator=(const lendable_tensors&) = delete;
  ~lendable_tensors();

 private:
  const std::shared_ptr<messages::shared_memory> memory_;
  messages::shared_memory* const outer_;
};

}  // namespace troupe::actors
