#include "engine/stage/running_statistics.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <stdexcept>

namespace troupe::engine {

void running_statistics::note(const step_key& step, microbatch_id microbatch,
                              const std::vector<fresh_statistic>& fresh) {
  if (fresh.empty()) return;
  const at::NoGradGuard no_grad;
  auto& noted = noted_[step];
  std::vector<std::uint64_t> which;
  std::vector<at::Tensor> values;
  for (const auto& [running, value] : fresh) {
    const auto own = std::ranges::find_if(
        buffers_, [&](const named_tensor& each) { return each.tensor.is_same(running); });
    if (own == buffers_.end())
      throw std::logic_error("a layer has a running statistic that is none of its buffers");
    which.push_back(static_cast<std::uint64_t>(own - buffers_.begin()));
    values.push_back(value.to(at::kFloat).reshape({-1}));
  }
  noted.which = std::move(which);
  noted.values[microbatch] = at::cat(values);
}

step_statistics running_statistics::take(const step_key& step) {
  auto taken = noted_.extract(step);
  if (!taken) return {};
  step_statistics all{.which = std::move(taken.mapped().which)};
  for (auto& [microbatch, value] : taken.mapped().values) all.values.push_back(std::move(value));
  return all;
}

void running_statistics::fold(const step_statistics& given) const {
  const at::NoGradGuard no_grad;
  std::int64_t needed = 0;
  for (const auto which : given.which) {
    if (which >= buffers_.size())
      throw std::invalid_argument("statistics of a buffer that the stage does not have");
    needed += buffers_[which].tensor.numel();
  }
  for (const auto& value : given.values) {
    if (!value.defined() || value.dim() != 1 || value.numel() != needed ||
        value.scalar_type() != at::kFloat)
      throw std::invalid_argument("running statistics of another size than the stage's buffers");
    std::int64_t at = 0;
    for (const auto which : given.which) {
      const auto running = buffers_[which].tensor.detach();
      const auto fresh = value.narrow(0, at, running.numel()).view(running.sizes());
      at += running.numel();
      if (running.is_floating_point())
        running.mul_(1 - running_momentum).add_(fresh.to(running.device()), running_momentum);
      else
        running.add_(fresh.to(running.options()));
    }
  }
}

}  // namespace troupe::engine
