#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <string_view>

namespace troupe::engine {

/// The forward that a layer is part of.
struct forward_pass {
  std::uint64_t random = 0;  ///< Seed of all that this micro-batch draws in this step.
  bool again = false;        ///< Repeated for its backward: running statistics have seen it.
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

/// For layers: what the layer of this name draws from in this pass. A repeated forward gets the
/// same numbers.
[[nodiscard]] at::Generator random_for(std::string_view layer);

}  // namespace troupe::engine
