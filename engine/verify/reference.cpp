#include "engine/verify/reference.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/autograd/autocast.hpp"
#include "engine/device/device_streams.hpp"
#include "engine/model/model.hpp"
#include "engine/stage/unscale.hpp"

namespace troupe::engine {
namespace {

at::Tensor forward(const model& layers, const stage_options& how, const at::Tensor& inputs) {
  auto x = inputs.detach().to(how.device);
  if (how.channels_last && x.dim() == 4) x = x.contiguous(at::MemoryFormat::ChannelsLast);
  const autocast_guard autocast(autocast_type(how.precision), how.device.type());
  for (const auto& each : layers) x = run_layer(*each, x, /*training=*/true);
  return x;
}

std::int64_t samples_in(const std::vector<batch>& microbatches) {
  std::int64_t samples = 0;
  for (const auto& each : microbatches) samples += each.inputs.size(0);
  return samples;
}

}  // namespace

std::vector<named_tensor> name_gradients(const std::vector<named_tensor>& parameters,
                                         const step_gradients& gradients) {
  std::vector<named_tensor> named;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    named.push_back({parameters[i].name, gradients[i].value_or(at::Tensor())});
  return named;
}

std::vector<named_tensor> copy_buffers(const model& layers) {
  auto all = buffers(layers);
  for (auto& each : all) each.tensor = copy_on_host(each.tensor);
  return all;
}

step_result run_in_one_piece(const model& layers, const stage_options& how, std::uint64_t step,
                             const std::vector<batch>& microbatches, double loss_scale) {
  const at::AutoGradMode recording(true);
  const auto all = parameters(layers);
  std::vector<at::Tensor> wanted;
  wanted.reserve(all.size());
  for (const auto& each : all) wanted.push_back(each.tensor);
  const auto samples = static_cast<double>(samples_in(microbatches));

  std::vector<at::Tensor> seeds;
  if (loss_scale != 1)
    seeds.push_back(at::scalar_tensor(loss_scale, at::device(how.device).dtype(at::kFloat)));

  step_result whole;
  gradient_sum sum(wanted.size());
  for (std::uint32_t i = 0; i < microbatches.size(); ++i) {
    const pass_scope pass({random_of(how.seed, step, i)});
    const auto& [inputs, labels] = microbatches[i];
    const auto output = forward(layers, how, inputs);
    const auto loss =
        how.loss(output, labels.to(how.device)) * (static_cast<double>(inputs.size(0)) / samples);
    whole.loss += loss.item<double>();
    sum.add(torch::autograd::grad({loss}, wanted, seeds, /*retain_graph=*/false,
                                  /*create_graph=*/false, /*allow_unused=*/true));
  }
  auto gradients = sum.take();
  sum_ties(all, ties(layers), gradients);
  if (loss_scale != 1) static_cast<void>(unscale(gradients, loss_scale));
  whole.gradients = name_gradients(all, gradients);
  whole.buffers = copy_buffers(layers);
  return whole;
}

}  // namespace troupe::engine
