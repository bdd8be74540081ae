#include "engine/verify/sliced_step.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "engine/autograd/autocast.hpp"
#include "engine/model/model.hpp"
#include "engine/stage/unscale.hpp"

namespace troupe::engine {

sliced_step::sliced_step(std::size_t slices, slice_source source, terms of)
    : slices_(slices), source_(std::move(source)), terms_(std::move(of)), inputs_(slices) {
  for (const auto& each : terms_.microbatches) {
    samples_ += static_cast<double>(each.inputs.size(0));
    auto x = each.inputs.detach().to(terms_.how.device);
    if (terms_.how.channels_last && x.dim() == 4) x = x.contiguous(at::MemoryFormat::ChannelsLast);
    inputs_.front().push_back(std::move(x));
  }
  gradients_.resize(terms_.microbatches.size());
  for (const auto& [one, other] : terms_.ties_between) tied_[one] = tied_[other] = std::nullopt;
}

at::Tensor sliced_step::run(const model& layers, std::size_t microbatch, const at::Tensor& input) {
  const pass_scope pass(
      {random_of(terms_.how.seed, terms_.step, static_cast<std::uint32_t>(microbatch))});
  const autocast_guard autocast(autocast_type(terms_.how.precision), terms_.how.device.type());
  at::Tensor x = input;
  for (const auto& each : layers) x = run_layer(*each, x, /*training=*/true);
  return x;
}

/// A leaf: what comes into a slice is what another slice gave.
at::Tensor sliced_step::input_of(std::size_t slice, std::size_t microbatch) const {
  const auto input = inputs_[slice][microbatch].detach();
  return slice == 0 ? input : input.requires_grad_();
}

at::Tensor sliced_step::loss_of(const at::Tensor& output, std::size_t microbatch) {
  const auto& [inputs, labels] = terms_.microbatches[microbatch];
  const auto loss = terms_.how.loss(output, labels.to(terms_.how.device)) *
                    (static_cast<double>(inputs.size(0)) / samples_);
  loss_ += loss.item<double>();
  return loss;
}

result<void> sliced_step::forward() {
  const at::AutoGradMode recording(true);  // so that layers take the way that they take in training
  for (std::size_t slice = 0; slice + 1 < slices_; ++slice) {
    const auto layers = source_(slice);
    if (!layers) return tl::unexpected(layers.error());
    for (std::size_t i = 0; i < gradients_.size(); ++i)
      inputs_[slice + 1].push_back(run(*layers, i, input_of(slice, i)).detach());
  }
  return {};
}

step_gradients sliced_step::sum_gradients(const model& layers, const std::vector<named_tensor>& own,
                                          std::size_t slice) {
  gradient_sum sum(own.size());
  const bool is_last = slice + 1 == slices_;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    const auto input = input_of(slice, i);
    auto end = run(layers, i, input);
    if (is_last) end = loss_of(end, i);
    std::vector<at::Tensor> wanted, seeds;
    for (const auto& each : own) wanted.push_back(each.tensor);
    if (slice > 0) wanted.push_back(input);
    if (!is_last)
      seeds.push_back(gradients_[i]);
    else if (terms_.loss_scale != 1)
      seeds.push_back(
          at::scalar_tensor(terms_.loss_scale, at::device(terms_.how.device).dtype(at::kFloat)));
    if (wanted.empty() || !end.requires_grad()) continue;
    auto found = torch::autograd::grad({end}, wanted, seeds, /*retain_graph=*/false,
                                       /*create_graph=*/false, /*allow_unused=*/true);
    if (slice > 0) {
      gradients_[i] = std::move(found.back());
      found.pop_back();
    }
    sum.add(found);
  }
  inputs_[slice].clear();
  return sum.take();
}

result<step_result> sliced_step::backward(std::size_t slice) {
  const at::AutoGradMode recording(true);
  const auto layers = source_(slice);
  if (!layers) return tl::unexpected(layers.error());
  const auto own = parameters(*layers);
  auto gradients = sum_gradients(*layers, own, slice);
  step_result part;
  part.buffers = copy_buffers(*layers);
  std::vector<named_tensor> untied;
  step_gradients of_untied;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (const auto held = tied_.find(own[i].name); held != tied_.end()) {
      held->second = std::move(gradients[i]);
      continue;
    }
    untied.push_back(own[i]);
    of_untied.push_back(std::move(gradients[i]));
  }
  sum_ties(untied, ties(*layers), of_untied);
  unscale_all(of_untied);
  part.gradients = name_gradients(untied, of_untied);
  return part;
}

std::vector<named_tensor> sliced_step::tied_gradients() {
  std::vector<named_tensor> names;
  step_gradients gradients;
  for (auto& [name, gradient] : tied_) {
    names.push_back({name, {}});
    gradients.push_back(std::move(gradient));
  }
  sum_ties(names, terms_.ties_between, gradients);
  unscale_all(gradients);
  return name_gradients(names, gradients);
}

void sliced_step::unscale_all(step_gradients& gradients) const {
  if (terms_.loss_scale != 1) static_cast<void>(unscale(gradients, terms_.loss_scale));
}

}  // namespace troupe::engine
