#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <vector>

#include "engine/autograd/autocast.hpp"
#include "engine/autograd/contexts.hpp"
#include "engine/autograd/pass.hpp"
#include "engine/data/dataset.hpp"
#include "engine/model/model.hpp"
#include "engine/stage/gradients.hpp"
#include "engine/stage/stage_module.hpp"
#include "engine/stage/unscale.hpp"
#include "engine/verify/reference.hpp"

namespace troupe::tests {

inline at::Tensor forward_in_one_piece(const engine::model& layers,
                                       const engine::stage_options& how, const at::Tensor& inputs) {
  auto x = inputs.detach().to(how.device);
  if (how.channels_last && x.dim() == 4) x = x.contiguous(at::MemoryFormat::ChannelsLast);
  const engine::autocast_guard autocast(engine::autocast_type(how.precision), how.device.type());
  for (const auto& each : layers) x = engine::run_layer(*each, x, /*training=*/true);
  return x;
}

inline std::int64_t samples_in(const std::vector<engine::batch>& parts) {
  std::int64_t samples = 0;
  for (const auto& each : parts) samples += each.inputs.size(0);
  return samples;
}

/// One training step of a whole model as one process does it without a pipeline: each micro-batch
/// forward through all layers and backward by plain autograd, gradients summed in the order of
/// micro-batches, then over ties. What a pipeline of the same layers is compared with. Writes the
/// model's buffers. `how`: its place in a pipeline and `recompute` do not count. `loss_scale`: see
/// `unscale`. Runs in the calling thread; torch's exceptions pass through.
inline engine::step_result run_in_one_piece(const engine::model& layers,
                                            const engine::stage_options& how, std::uint64_t step,
                                            const std::vector<engine::batch>& parts,
                                            double loss_scale = 1) {
  const at::AutoGradMode recording(true);
  const auto all = engine::parameters(layers);
  std::vector<at::Tensor> wanted;
  wanted.reserve(all.size());
  for (const auto& each : all) wanted.push_back(each.tensor);
  const auto samples = static_cast<double>(samples_in(parts));

  std::vector<at::Tensor> seeds;
  if (loss_scale != 1)
    seeds.push_back(at::scalar_tensor(loss_scale, at::device(how.device).dtype(at::kFloat)));

  engine::step_result whole;
  engine::gradient_sum sum(wanted.size());
  for (std::uint32_t i = 0; i < parts.size(); ++i) {
    const engine::pass_scope pass({engine::random_of(how.seed, step, i)});
    const auto& [inputs, labels] = parts[i];
    const auto output = forward_in_one_piece(layers, how, inputs);
    const auto loss =
        how.loss(output, labels.to(how.device)) * (static_cast<double>(inputs.size(0)) / samples);
    whole.loss += loss.item<double>();
    sum.add(torch::autograd::grad({loss}, wanted, seeds, /*retain_graph=*/false,
                                  /*create_graph=*/false, /*allow_unused=*/true));
  }
  auto gradients = sum.take();
  engine::sum_ties(all, engine::ties(layers), gradients);
  if (loss_scale != 1) static_cast<void>(engine::unscale(gradients, loss_scale));
  whole.gradients = engine::name_gradients(all, gradients);
  whole.buffers = engine::copy_buffers(layers);
  return whole;
}

}  // namespace troupe::tests
