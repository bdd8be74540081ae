#pragma once

#include <ATen/core/Tensor.h>

#include "messages/frame.hpp"

namespace troupe::actors {

/// An element type's place on the wire, and back. One that has none is a std::invalid_argument.
[[nodiscard]] messages::dtype wire_type(at::ScalarType type);
[[nodiscard]] at::ScalarType scalar_type(messages::dtype type);

/// A tensor as it leaves: its own storage by reference, held until the link is done with it, on the
/// device where it lies: a link that does not move that device's memory refuses it. Memory format
/// is kept; a tensor with gaps is copied first. An element type or a device that has no place on
/// the wire is a std::invalid_argument.
[[nodiscard]] messages::wire_tensor to_wire(const at::Tensor& tensor);

/// What to do with a tensor that lies in another process's memory, where a write ends in SIGSEGV.
enum class lent { copied, kept };

/// The tensor that arrived, over the bytes the link received: no copy, unless it is lent and not to
/// be kept.
[[nodiscard]] at::Tensor from_wire(const messages::wire_tensor& arrived, lent how);

}  // namespace troupe::actors
