#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "engine/step/step_key.hpp"

/// From the trainer to whoever reads batches, and from there to the feeder.
namespace troupe::actors {

/// A batch in micro-batches, for the feeder of the same process, never between nodes.
struct feed_batch {
  static constexpr auto declared = stays_here;

  engine::step_key step;
  std::vector<at::Tensor> inputs;  // [n, C, H, W] f32 each, or [n, T] i64
  std::vector<at::Tensor> labels;  // [n] i64 each, or [n, T] i64
};

/// Reads a batch and has its micro-batches fed to the first and the labels to the last stage.
struct deliver_batch {
  static constexpr auto declared = travels("deliver_batch");

  engine::step_key step;
  bool test = false;   // from the test split
  at::Tensor indices;  // [N] i64, of the samples
  std::uint32_t microbatches = 1;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.step.epoch, self.step.step, self.test, self.indices, self.microbatches);
  }
};

/// The batch is with the feeder. Unreadable samples were left out, so it may be smaller than asked
/// for.
struct batch_delivered {
  static constexpr auto declared = travels("batch_delivered");

  engine::step_key step;
  std::int64_t samples = 0;
  std::uint32_t microbatches = 0;  // never more than samples
  std::uint64_t skipped = 0;       // unreadable samples since the start

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.step.epoch, self.step.step, self.samples, self.microbatches, self.skipped);
  }
};

using data_messages = message_list<feed_batch, deliver_batch, batch_delivered>;

}  // namespace troupe::actors
