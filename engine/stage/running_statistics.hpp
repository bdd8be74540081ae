#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "engine/autograd/pass.hpp"
#include "engine/base/named_tensor.hpp"
#include "engine/step/step_key.hpp"

namespace troupe::engine {

/// What a replica's micro-batches of one step contribute to the running statistics of a slice.
struct step_statistics {
  std::vector<std::uint64_t> which = {};  ///< Indices of the slice's buffers.
  std::vector<at::Tensor> values = {};    ///< One per micro-batch: those buffers' in turn, [n] f32.

  static void fields(auto& self, auto& f) { f(self.which, self.values); }
};

/// Keeps the statistics of each micro-batch until all replicas' are there and can be folded into
/// the running ones in the order of the whole batch. Used by one thread.
class running_statistics {
 public:
  explicit running_statistics(std::vector<named_tensor> buffers) : buffers_(std::move(buffers)) {}

  void note(const step_key& step, microbatch_id microbatch,
            const std::vector<fresh_statistic>& fresh);

  /// Returns the statistics of a step, by micro-batch, and forgets them.
  [[nodiscard]] step_statistics take(const step_key& step);

  void forget(const step_key& step) { noted_.erase(step); }

  /// Folds each micro-batch's statistics into the buffers, in the order given. Whole numbers are
  /// counted up. Throws std::invalid_argument for what does not fit the buffers; some of it may
  /// have been folded then.
  void fold(const step_statistics& given) const;

 private:
  struct noted_step {
    std::vector<std::uint64_t> which;
    std::map<microbatch_id, at::Tensor> values;  // [n] f32
  };

  std::vector<named_tensor> buffers_;  // handles share storage with the layers' own
  std::map<step_key, noted_step> noted_;
};

}  // namespace troupe::engine
