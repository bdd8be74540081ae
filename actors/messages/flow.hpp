#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>

#include "actors/messages/declaration.hpp"
#include "engine/device/device_streams.hpp"
#include "engine/step/edge.hpp"
#include "engine/step/step_key.hpp"
#include "messages/base/ids.hpp"

/// What flows along the edges of the pipeline: between stages, and from the feeder to the
/// model's ends. Tensors are shared by reference inside a process, and nobody writes them once they
/// are sent; that holds for every message. A tensor on a device goes by reference to stages of the
/// same process only, with an event (`made`) that says when it is there, and to others as a copy of
/// the host's.
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

/// The receiver has begun to use what came on this edge: its sender may send one more. Grants go to
/// the slice before or the feeder for an input, to the slice after for a gradient, to the feeder
/// for a target. Travels on the control lane, so that tensors under way do not delay it.
struct credit {
  static constexpr auto declared = travels("credit", messages::lane::control);

  engine::edge on = engine::edge::input;
  microbatch_key key;

  static void fields(auto& self, auto& f) { f(self.on, self.key); }
};

using flow_messages = message_list<activation, target, gradient, credit>;

}  // namespace troupe::actors
