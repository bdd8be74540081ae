#pragma once

#include <ATen/core/Tensor.h>

#include "messages/frame.hpp"

namespace troupe::actors {

/// A tensor as it leaves: its own storage by reference, held until the link is done with it. Memory
/// format is kept; a tensor with gaps or on another device than the CPU is copied first. An element
/// type that has no place on the wire is a std::invalid_argument.
[[nodiscard]] messages::wire_tensor to_wire(const at::Tensor& tensor);

/// The tensor that arrived, over the bytes the link received: no copy.
[[nodiscard]] at::Tensor from_wire(const messages::wire_tensor& arrived);

}  // namespace troupe::actors
