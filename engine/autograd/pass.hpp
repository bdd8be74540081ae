#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace troupe::engine {

/// How much a micro-batch's own statistics count in the running ones.
inline constexpr double running_momentum = 0.1;

/// What a micro-batch gives to a running statistic, a buffer of a layer, that is not updated at
/// once.
struct fresh_statistic {
  at::Tensor running;
  at::Tensor value;  ///< As many numbers; of one that counts micro-batches, 1.
};

/// The forward that a layer is part of.
struct forward_pass {
  std::uint64_t random = 0;  ///< Seed of all that this micro-batch draws in this step.
  bool again = false;        ///< Repeated for its backward: running statistics have seen it.
  /// Where replicas share a batch: layers leave their running statistics alone and append to this
  /// instead, so that they can be folded in the order of the whole batch. Null: layers update them.
  std::vector<fresh_statistic>* fresh = nullptr;
};

/// The seed of one micro-batch of one step: the same numbers whatever the stages, the
/// schedule and the steps in between.
[[nodiscard]] std::uint64_t random_of(std::uint64_t seed, std::uint64_t step,
                                      std::uint32_t microbatch);

/// While one lives, layers on this thread run in `pass`. Scopes nest; without any, the pass is a
/// default one.
class pass_scope {
 public:
  explicit pass_scope(const forward_pass& pass);
  pass_scope(const pass_scope&) = delete;
  pass_scope& operator=(const pass_scope&) = delete;
  ~pass_scope();

 private:
  forward_pass before_;
};

/// For layers: the pass on this thread.
[[nodiscard]] const forward_pass& current_pass();

/// For layers: what the layer of this name draws from in this pass, on the device where it draws;
/// the numbers of different kinds of devices differ. A repeated forward gets the same numbers.
[[nodiscard]] at::Generator random_for(std::string_view layer, c10::Device on = c10::kCPU);

}  // namespace troupe::engine
