#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "engine/device/device_streams.hpp"
#include "engine/step/edge.hpp"
#include "engine/step/step_key.hpp"
#include "messages/base/error.hpp"
#include "messages/base/ids.hpp"
#include "messages/frame.hpp"

/// What flows along the edges of the pipeline: between stages, and from the feeder to the
/// model's ends. Tensors are shared by reference inside a process, and nobody writes them once they
/// are sent; that holds for every message. A tensor on a device goes by reference to stages of the
/// same process only, with an event (`made`) that says when it is there, and to others as a copy of
/// the host's, or where the stages have ports (see edge_port) by those, and a message announces it.
namespace troupe::actors {

/// Which micro-batch of which step a message is about, and which of its receiver's chunks it is
/// for.
struct microbatch_key {
  engine::step_key step;
  microbatch_id microbatch;
  std::uint32_t chunk = 0;

  auto operator<=>(const microbatch_key&) const = default;

  static void fields(auto& self, auto& f) {
    f(self.step.epoch, self.step.step, self.microbatch, self.chunk);
  }
};

/// The output of a slice of the model for the slice after it; or the inputs, for the first.
struct activation {
  static constexpr auto declared = travels("activation");

  microbatch_key key;
  at::Tensor tensor;              // [n, ...]
  engine::ready_event made = {};  // stays in the process

  static void fields(auto& self, auto& f) { f(self.key, self.tensor); }
};

/// Labels, for the last slice of the model.
struct target {
  static constexpr auto declared = travels("target");

  microbatch_key key;
  at::Tensor labels;  // [n] i64, or [n, T] i64

  static void fields(auto& self, auto& f) { f(self.key, self.labels); }
};

/// The gradient of the activation that the slice before sent.
struct gradient {
  static constexpr auto declared = travels("gradient");

  microbatch_key key;
  at::Tensor tensor;              // [n, ...], undefined where nothing upstream needs it
  engine::ready_event made = {};  // stays in the process

  static void fields(auto& self, auto& f) { f(self.key, self.tensor); }
};

/// An activation or a gradient comes by a port (see edge_port): the n-th that a port's sender
/// announces is the n-th that it sends there, since a lane keeps the order of messages. Where the
/// receiver begins first (edge_port::receiver_first), the sender begins when it is answered by
/// `awaited_tensor`; else it has begun. Travels on the control lane, so that tensors under way,
/// versions above all, do not delay it.
struct announced_tensor {
  static constexpr auto declared = travels("announced_tensor", messages::lane::control);

  std::uint64_t port = 0;   // see edge_port::number
  std::uint64_t place = 0;  // among what is sent by this port, from 0
  microbatch_key key = {};  // of the receiver
  messages::dtype type = messages::dtype::f32;
  std::vector<std::int64_t> shape = {}, strides = {};  // dense

  static void fields(auto& self, auto& f) {
    f(self.port, self.place, self.key, self.type, self.shape, self.strides);
  }
};

/// The receiver's device has been given the receive of what was announced by this port at this
/// place: the sender may begin. Only where the receiver begins first.
struct awaited_tensor {
  static constexpr auto declared = travels("awaited_tensor", messages::lane::control);

  std::uint64_t port = 0, place = 0;  // as they were announced

  static void fields(auto& self, auto& f) { f(self.port, self.place); }
};

/// A port has brought what was announced, or a tensor never will be moved: from a port's thread to
/// its stage, never between nodes.
struct tensor_moved {
  static constexpr auto declared = stays_here;

  engine::edge on = engine::edge::input;
  microbatch_key key = {};
  at::Tensor tensor = {};  // [n, ...] that was received
  std::optional<error> failure = {};
  std::uint32_t connection = 0;  // of the stage: of an earlier one it concerns nobody
};

/// The receiver has begun to use what came on this edge: its sender may send one more. Grants go to
/// the slice before or the feeder for an input, to the slice after for a gradient, to the feeder
/// for a target. Travels on the control lane, so that tensors under way do not delay it.
struct credit {
  static constexpr auto declared = travels("credit", messages::lane::control);

  engine::edge on = engine::edge::input;
  microbatch_key key;

  static void fields(auto& self, auto& f) { f(self.on, self.key); }
};

using flow_messages = message_list<activation, target, gradient, announced_tensor, awaited_tensor,
                                   tensor_moved, credit>;

}  // namespace troupe::actors
