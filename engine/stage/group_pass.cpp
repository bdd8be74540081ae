#include "engine/stage/group_pass.hpp"

#include <ATen/ops/cat.h>

#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace troupe::engine {
namespace {

/// Undefined where there is none of any.
at::Tensor join(const std::vector<at::Tensor>& parts) {
  if (parts.size() == 1 || !parts.front().defined()) return parts.front();
  return at::cat(parts);
}

}  // namespace

std::vector<at::Tensor> group_pass::split(const at::Tensor& whole) const {
  const auto count = group_.members.size();
  if (!whole.defined() || count == 1) return std::vector<at::Tensor>(count, whole);
  const auto wanted = std::reduce(group_.samples.begin(), group_.samples.end(), std::int64_t{0});
  if (whole.dim() == 0 || whole.size(0) != wanted)
    throw std::invalid_argument("a tensor for a group of " + std::to_string(wanted) +
                                " samples has another number of them");
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (const auto samples : group_.samples) {
    parts.push_back(whole.narrow(0, begin, samples));
    begin += samples;
  }
  return parts;
}

template <class Body>
void group_pass::run(const Body& body) {
  std::vector<lane_task> tasks;
  for (std::size_t i = 0; i < group_.members.size(); ++i)
    tasks.push_back({group_.members[i].logical, group_.members[i].counts, [this, &body, i] {
                       const auto on_device = module_.streams().computing();
                       body(i);
                     }});
  lanes_.run(tasks, exchange_);
}

group_outcome group_pass::forward(const at::Tensor& input, const at::Tensor& labels,
                                  std::int64_t batch_size) {
  const auto inputs = split(input);
  const auto targets = split(labels);
  std::vector<at::Tensor> activations(inputs.size());
  group_outcome outcome;
  outcome.losses.resize(inputs.size());
  run([&](std::size_t i) {
    const auto microbatch = group_.members[i].microbatch;
    auto made =
        module_.forward(step_, step_kind::training, microbatch, inputs[i], targets[i], batch_size);
    activations[i] = std::move(made.activation);
    outcome.losses[i] = {microbatch, made.loss, std::move(made.metrics)};
  });
  outcome.activation = join(activations);
  return outcome;
}

at::Tensor group_pass::backward_input(const at::Tensor& gradient) {
  const bool is_scale = module_.options().is_last;
  const auto gradients =
      is_scale ? std::vector<at::Tensor>(group_.members.size(), gradient) : split(gradient);
  std::vector<at::Tensor> of_inputs(gradients.size());
  run([&](std::size_t i) {
    of_inputs[i] = module_.backward_input(step_, group_.members[i].microbatch, gradients[i]);
  });
  return join(of_inputs);
}

void group_pass::backward_weights() {
  for (const auto& each : group_.members) module_.backward_weights(step_, each.microbatch);
}

}  // namespace troupe::engine
