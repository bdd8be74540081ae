#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "actors/transfer/piece.hpp"
#include "messages/base/error.hpp"

/// From the driver to its workers: their shares of a step.
namespace troupe::actors {

/// A worker's share of a step: these samples forward, backward, pushed and pulled; or, to evaluate,
/// only forward with the newest parameters.
struct run_share {
  static constexpr auto declared = travels("run_share");

  std::uint64_t step = 0;
  bool evaluate = false;  // with samples of the test split
  at::Tensor samples;     // [n] i64

  static void fields(auto& self, auto& f) { f(self.step, self.evaluate, self.samples); }
};

struct share_done {
  static constexpr auto declared = travels("share_done");

  std::uint64_t step = 0;
  std::int64_t samples = 0;          // without those that could not be read
  double loss = 0;                   // mean
  std::vector<double> metrics = {};  // evaluation: each one's sum over the labels
  double busy_s = 0;                 // of arithmetic
  std::uint64_t stale = 0;           // pushes that were refused as too stale before one was applied
  std::uint64_t peak_memory_bytes = 0;
  // The parameter server's error, if it ended the share: the worker itself is well.
  errc code = errc::peer_lost;
  std::string failure;

  static void fields(auto& self, auto& f) {
    f(self.step, self.samples, self.loss, self.metrics, self.busy_s, self.stale,
      self.peak_memory_bytes, self.code, self.failure);
  }
};

/// What a worker's thread has done for a request: to its actor, never between nodes.
struct share_outcome {
  static constexpr auto declared = stays_here;

  std::uint64_t ticket = 0;
  share_done report;
  std::optional<tensor_piece> weights;  // of read_weights
};

/// Asks for a worker's own buffers, such as running statistics.
struct read_buffers {
  static constexpr auto declared = travels("read_buffers");

  list_place from = {};
  piece_limits most = {};

  static void fields(auto& self, auto& f) { f(self.from, self.most); }
};

using server_share_messages = message_list<run_share, share_done, share_outcome, read_buffers>;

}  // namespace troupe::actors
