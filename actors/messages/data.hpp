#pragma once

#include <ATen/core/Tensor.h>

#include <caf/actor_control_block.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "engine/step/step_key.hpp"

/// From the trainer to whoever reads batches, and from there to the feeder.
namespace troupe::actors {

/// For messages that name samples: [N] i64.
[[nodiscard]] at::Tensor to_tensor(std::span<const std::int64_t> indices);

/// The same list; empty where there is no tensor.
[[nodiscard]] std::vector<std::int64_t> to_list(const at::Tensor& indices);

/// A batch in micro-batches.
struct feed_batch {
  static constexpr auto declared = travels("feed_batch");

  engine::step_key step;
  std::vector<at::Tensor> inputs;  // [n, C, H, W] f32 each, or [n, T] i64
  std::vector<at::Tensor> labels;  // [n] i64 each, or [n, T] i64; undefined where there are none

  static void fields(auto& self, auto& f) {
    f(self.step.epoch, self.step.step, self.inputs, self.labels);
  }
};

/// Has a node open a data set that it sees: engine::dataset_options. What it had opened before
/// ends. Where another node has read it before in this run, and is lost, what that one has skipped
/// is counted as this one's.
struct open_data {
  static constexpr auto declared = travels("open_data");

  std::string source;
  std::int64_t context = 0;
  std::int64_t image_size = 0;
  std::uint64_t seed = 0;
  std::int32_t threads = 1;
  bool strict = false;
  // By those that have read it before: see engine::skipped_samples; most_left_out_told each.
  std::uint64_t skipped = 0;
  std::vector<std::int64_t> left_out_train = {}, left_out_test = {};

  static void fields(auto& self, auto& f) {
    f(self.source, self.context, self.image_size, self.seed, self.threads, self.strict,
      self.skipped, self.left_out_train, self.left_out_test);
  }
};

struct data_opened {
  static constexpr auto declared = travels("data_opened");

  caf::strong_actor_ptr data;  // a data_actor

  static void fields(auto& self, auto& f) { f(self.data); }
};

/// Who gets the inputs and the labels: the stages of the model's first and last slice. Sent once
/// for each replica, from 0 on; that of replica 0 starts over.
struct connect_data {
  static constexpr auto declared = travels("connect_data");

  caf::strong_actor_ptr first, last;  // stage_actors
  std::uint32_t last_chunk = 0;       // of the last slice on its stage
  std::uint32_t credits = 1;
  std::uint32_t replica = 0;
  std::uint32_t grouped = 0;  // see `feed`
  bool logs = false;          // see `spawn_feeder`

  static void fields(auto& self, auto& f) {
    f(self.first, self.last, self.last_chunk, self.credits, self.replica, self.grouped, self.logs);
  }
};

struct data_connected {
  static constexpr auto declared = travels("data_connected");

  caf::strong_actor_ptr feeder;  // a feeder_actor

  static void fields(auto& self, auto& f) { f(self.feeder); }
};

struct describe_data {
  static constexpr auto declared = travels("describe_data");

  bool digested = false;  // with the digest, which may take as long as opening the data

  static void fields(auto& self, auto& f) { f(self.digested); }
};

/// What an engine::dataset says of itself.
struct data_described {
  static constexpr auto declared = travels("data_described");

  std::int64_t train_size = 0, test_size = 0;  // samples
  std::int64_t classes = 0;
  std::vector<std::int64_t> sample_shape;  // [C, H, W], or [T]
  std::int64_t labels_per_sample = 1;
  std::uint64_t skipped = 0;                                // unreadable samples so far
  std::vector<std::int64_t> left_out_train, left_out_test;  // which those are
  std::string digest;                                       // where it was asked for

  static void fields(auto& self, auto& f) {
    f(self.train_size, self.test_size, self.classes, self.sample_shape, self.labels_per_sample,
      self.skipped, self.left_out_train, self.left_out_test, self.digest);
  }
};

/// Some samples for the trainer itself, which compares or profiles with them.
struct read_samples {
  static constexpr auto declared = travels("read_samples");

  bool test = false;   // from the test split
  at::Tensor indices;  // [N] i64

  static void fields(auto& self, auto& f) { f(self.test, self.indices); }
};

struct samples_read {
  static constexpr auto declared = travels("samples_read");

  at::Tensor inputs;  // as of engine::batch
  at::Tensor labels;

  static void fields(auto& self, auto& f) { f(self.inputs, self.labels); }
};

/// Reads a batch and has its micro-batches fed to the first and the labels to the last stage.
struct deliver_batch {
  static constexpr auto declared = travels("deliver_batch");

  engine::step_key step;
  bool test = false;   // from the test split
  at::Tensor indices;  // [N] i64, of the samples
  std::uint32_t microbatches = 1;
  // [n] i64, those of the samples that are not to be read: they could not be when the batch was
  // read before. Undefined: there are none.
  at::Tensor left_out = {};

  static void fields(auto& self, auto& f) {
    f(self.step.epoch, self.step.step, self.test, self.indices, self.microbatches, self.left_out);
  }
};

/// The batch is with the feeder. Unreadable samples were left out, so it may be smaller than asked
/// for.
struct batch_delivered {
  static constexpr auto declared = travels("batch_delivered");

  engine::step_key step;
  std::int64_t samples = 0;
  std::uint32_t microbatches = 0;  // never more than samples
  std::uint64_t skipped = 0;       // unreadable samples since the start of the run
  at::Tensor left_out = {};        // [n] i64, which of this batch; undefined: there are none

  static void fields(auto& self, auto& f) {
    f(self.step.epoch, self.step.step, self.samples, self.microbatches, self.skipped,
      self.left_out);
  }
};

using data_messages =
    message_list<feed_batch, open_data, data_opened, connect_data, data_connected, describe_data,
                 data_described, read_samples, samples_read, deliver_batch, batch_delivered>;

}  // namespace troupe::actors
