#include "engine/autograd/contexts.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>

#include <algorithm>
#include <cassert>
#include <iterator>

namespace troupe::engine {

void microbatch_contexts::put(const step_key& step, microbatch_id microbatch,
                              microbatch_context context) {
  // What micro-batches before it made may have outlived their backward, and be gone by now.
  if (contexts_.empty()) recount();
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

void microbatch_contexts::charge(const step_key& step, microbatch_id microbatch,
                                 const watched_storages& made) {
  accounts_[{step, microbatch}].made.merge(made);
}

void microbatch_contexts::count(const step_key& step, microbatch_id microbatch) {
  const auto found = accounts_.find({step, microbatch});
  if (found == accounts_.end()) return;
  held_bytes_ -= found->second.bytes;
  found->second.bytes = bytes_of(*found);
  held_bytes_ += found->second.bytes;
  peak_bytes_ = std::max(peak_bytes_, held_bytes_);
  if (found->second.bytes == 0) accounts_.erase(found);
}

void microbatch_contexts::recount() {
  held_bytes_ = 0;
  for (auto each = accounts_.begin(); each != accounts_.end();) {
    each->second.bytes = bytes_of(*each);
    held_bytes_ += each->second.bytes;
    each = each->second.bytes == 0 ? accounts_.erase(each) : std::next(each);
  }
}

std::uint64_t microbatch_contexts::bytes_of(const std::pair<const key, account>& of) const {
  std::uint64_t total = of.second.made.live_bytes();
  const auto context = contexts_.find(of.first);
  if (context == contexts_.end()) return total;
  for (const auto& tensor : {context->second.input, context->second.output})
    if (tensor.defined()) total += tensor.nbytes();
  return total;
}

std::uint64_t microbatch_contexts::bytes(const step_key& step) const {
  std::uint64_t total = 0;
  for (const auto& each : accounts_)
    if (each.first.first == step) total += bytes_of(each);
  return total;
}

void gradient_sum::add(const std::vector<at::Tensor>& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) add(i, gradients[i]);
}

void gradient_sum::add(std::size_t parameter, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  if (!gradient.defined()) return;
  auto& [sum, owned] = sums_[parameter];
  if (!sum.defined()) {
    sum = gradient;
  } else if (owned) {
    sum.add_(gradient);
  } else {
    sum = at::add(sum, gradient);
    owned = true;
  }
}

void gradient_sum::add(std::size_t parameter, at::Tensor&& gradient) {
  auto& [sum, owned] = sums_[parameter];
  if (sum.defined() || !gradient.defined()) return add(parameter, std::as_const(gradient));
  sum = std::move(gradient);
  owned = sum.use_count() == 1 && sum.has_storage() && sum.storage().use_count() == 1;
}

void gradient_sum::add(std::size_t parameter, const weight_task& task) {
  const at::NoGradGuard no_grad;
  auto& [sum, owned] = sums_[parameter];
  if (owned && task.add_to) return task.add_to(sum);
  add(parameter, task.gradient());
}

std::optional<at::Tensor> gradient_sum::take(std::size_t parameter) {
  auto running = std::exchange(sums_.at(parameter), {});
  return running.sum.defined() ? std::optional(std::move(running.sum)) : std::nullopt;
}

std::vector<std::optional<at::Tensor>> gradient_sum::take() {
  std::vector<std::optional<at::Tensor>> sums;
  sums.reserve(sums_.size());
  for (std::size_t i = 0; i < sums_.size(); ++i) sums.push_back(take(i));
  return sums;
}

}  // namespace troupe::engine
