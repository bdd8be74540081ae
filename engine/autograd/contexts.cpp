#include "engine/autograd/contexts.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>

#include <cassert>

namespace troupe::engine {

void microbatch_contexts::put(const step_key& step, microbatch_id microbatch,
                              microbatch_context context) {
  [[maybe_unused]] const bool fresh =
      contexts_.emplace(std::pair(step, microbatch), std::move(context)).second;
  assert(fresh && "a micro-batch went forward twice");
}

std::optional<microbatch_context> microbatch_contexts::take(const step_key& step,
                                                            microbatch_id microbatch) {
  auto found = contexts_.extract({step, microbatch});
  if (!found) return std::nullopt;
  return std::move(found.mapped());
}

void gradient_sum::add(const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  sums_.resize(std::max(sums_.size(), gradients.size()));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    auto& [sum, owned] = sums_[i];
    if (!gradients[i].defined()) continue;
    if (!sum.defined()) {
      sum = gradients[i];
    } else if (owned) {
      sum.add_(gradients[i]);
    } else {
      sum = at::add(sum, gradients[i]);
      owned = true;
    }
  }
}

std::vector<std::optional<at::Tensor>> gradient_sum::take() {
  std::vector<std::optional<at::Tensor>> sums;
  sums.reserve(sums_.size());
  for (auto& running : std::exchange(sums_, {}))
    sums.push_back(running.sum.defined() ? std::optional(std::move(running.sum)) : std::nullopt);
  return sums;
}

}  // namespace troupe::engine
