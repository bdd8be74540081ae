#include "engine/partition/profile.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>

#include "engine/autograd/autocast.hpp"
#include "engine/model/model.hpp"

namespace troupe::engine {
namespace {

/// Counts the bytes of tensors that this thread's operators allocate and free while it lives.
class byte_counter {
 public:
  byte_counter()
      : count_(std::make_shared<counter>()), guard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}

  [[nodiscard]] double live() const { return static_cast<double>(count_->live); }

 private:
  struct counter final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*at*/, std::int64_t bytes, std::size_t /*allocated*/,
                           std::size_t /*reserved*/, c10::Device /*device*/) override {
      live += bytes;
    }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }

    std::int64_t live = 0;
  };

  std::shared_ptr<counter> count_;
  c10::DebugInfoGuard guard_;
};

class stopwatch {
 public:
  /// Seconds since the last lap, or since it was made.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

constexpr std::size_t most_cached = std::size_t{32} << 20;

/// Other memory that passes through the caches between two measurements.
class cache_sweep {
 public:
  explicit cache_sweep(std::size_t model_bytes)
      : memory_(std::min(model_bytes, most_cached) / sizeof(std::uint64_t), 1) {}

  void operator()() {
    for (auto& each : memory_) each += total_;
    total_ = memory_.empty() ? 0 : memory_.back();
  }

 private:
  std::vector<std::uint64_t> memory_;
  std::uint64_t total_ = 1;
};

/// Where autograd records, another tensor of the same values that is no leaf: what a layer is given
/// in a model, and may write.
at::Tensor as_in_a_model(const at::Tensor& input) {
  return input.requires_grad() ? input.clone() : input;
}

/// Measures one layer after another. Each gives its output to the next.
class profiler {
 public:
  profiler(const stage_options& how, const batch& samples, std::size_t model_bytes)
      : how_(how), labels_(samples.labels.to(how.device)), sweep_(model_bytes) {
    input_ = samples.inputs.detach().to(how.device);
    if (how.channels_last && input_.dim() == 4)
      input_ = input_.contiguous(at::MemoryFormat::ChannelsLast);
  }

  /// `is_last`: the loss is behind it.
  void measure(layer& which, bool is_last, int repeats, layer_cost& cost) {
    const auto parameters = which.parameters();
    gradient_sum sum(parameters.size());  // lives from pass to pass, as a step's sum does
    const auto output = measure_bytes(which, cost);
    if (repeats > 0) {
      measure_update(parameters, cost);
      static_cast<void>(measure_times(which, parameters, is_last, sum));  // warms up
    }
    for (int i = 0; i < repeats; ++i) {
      const auto pass = measure_times(which, parameters, is_last, sum);
      for (const auto part : {&layer_cost::forward_s, &layer_cost::input_s, &layer_cost::weight_s})
        cost.*part = i == 0 ? pass.*part : std::min(cost.*part, pass.*part);
    }
    input_ = output.detach();
    if (output.requires_grad()) input_.requires_grad_();
  }

 private:
  /// Bytes of copies, of what is kept, and of what is passed on: what a pass leaves behind, and
  /// what the next one leaves alive while its output is there.
  at::Tensor measure_bytes(layer& which, layer_cost& cost) const {
    const byte_counter bytes;
    pass_once(which);
    cost.copied_bytes = std::max(0.0, bytes.live());
    const auto input = as_in_a_model(input_);
    const double before = bytes.live();
    const auto output = forward(which, input);
    cost.kept_bytes = std::max(0.0, bytes.live() - before);
    cost.output_bytes = static_cast<double>(output.nbytes());
    for (const auto& [name, tensor] : which.parameters()) cost.parameter_bytes += tensor.nbytes();
    return output;
  }

  /// Forward, and backward without the weights' gradients.
  void pass_once(layer& which) const {
    const auto input = input_.requires_grad() ? input_.clone().detach().requires_grad_() : input_;
    const auto output = forward(which, input);
    if (!input.requires_grad() || !output.requires_grad()) return;
    const weight_gradient_collector dropped;
    static_cast<void>(torch::autograd::grad({output}, {input}, {at::ones_like(output)}));
  }

  /// What an optimizer with one buffer a parameter costs: a few passes over its memory.
  static void measure_update(const std::vector<named_tensor>& parameters, layer_cost& cost) {
    const at::NoGradGuard no_grad;
    stopwatch watch;
    for (const auto& [name, tensor] : parameters)
      at::mul(tensor, 0.9).add_(tensor, 0.1).add_(tensor, 0.1);
    cost.update_s = watch.lap();
  }

  /// Seconds of forward, backward and deferred weights.
  layer_cost measure_times(layer& which, const std::vector<named_tensor>& parameters, bool is_last,
                           gradient_sum& sum) {
    layer_cost cost;
    sweep_();
    const auto input = input_.requires_grad() ? input_.clone().detach().requires_grad_() : input_;
    stopwatch watch;
    auto end = forward(which, input);
    if (is_last) end = how_.loss(end, labels_) * 1.0;
    cost.forward_s = watch.lap();
    sweep_();
    std::vector<at::Tensor> wanted;
    for (const auto& [name, tensor] : parameters) wanted.push_back(tensor);
    if (input.requires_grad()) wanted.push_back(input);
    if (wanted.empty() || !end.requires_grad()) return cost;
    const auto gradient = at::ones_like(end);
    watch.lap();
    weight_gradient_collector later;
    const auto found = torch::autograd::grad({end}, wanted, {gradient}, /*retain_graph=*/false,
                                             /*create_graph=*/false, /*allow_unused=*/true);
    cost.input_s = watch.lap();
    for (std::size_t p = 0; p < parameters.size(); ++p) sum.add(p, found[p]);
    for (auto& task : later.take()) sum.add(index_of(task.weight, parameters), task);
    cost.weight_s = watch.lap();
    return cost;
  }

  [[nodiscard]] at::Tensor forward(layer& which, const at::Tensor& x) const {
    const autocast_guard autocast(autocast_type(how_.precision), how_.device.type());
    return run_layer(which, x, /*training=*/true);
  }

  static std::size_t index_of(const at::Tensor& weight,
                              const std::vector<named_tensor>& parameters) {
    const auto found = std::ranges::find_if(
        parameters, [&](const auto& each) { return each.tensor.is_same(weight); });
    return static_cast<std::size_t>(found - parameters.begin());
  }

  const stage_options& how_;
  at::Tensor input_;   // [n, ...]
  at::Tensor labels_;  // [n, ...] i64
  cache_sweep sweep_;
};

std::size_t bytes_of(const model& layers) {
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : parameters(layers)) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace

result<model_profile> profile_model(const model_blueprint& of, const stage_options& how,
                                    const batch& samples, int repeats) {
  const at::AutoGradMode recording(true);
  const auto described = describe(of);
  if (!described) return tl::unexpected(described.error());
  const auto count = described->size();
  model_profile measured{samples.inputs.size(0), std::vector<layer_cost>(count)};
  auto sample_shape = samples.inputs.sizes().slice(1).vec();
  profiler run(how, samples, bytes_of(*described));
  for (std::size_t i = 0; i < count; ++i) {
    auto& cost = measured.layers[i];
    cost.name = described->at(i)->name();
    cost.macs = described->at(i)->macs(sample_shape);
    model one;
    auto made = make_any(of, i);
    if (!made) return tl::unexpected(made.error());
    one.push_back(std::move(*made));
    to_memory_format(one, how.channels_last);
    run.measure(*one.front(), i + 1 == count, repeats, cost);
  }
  return measured;
}

model_profile mean_of(const std::vector<model_profile>& profiles) {
  model_profile mean = profiles.front();
  const auto count = static_cast<double>(profiles.size());
  for (std::size_t i = 0; i < mean.layers.size(); ++i) {
    for (const auto part : {&layer_cost::forward_s, &layer_cost::input_s, &layer_cost::weight_s,
                            &layer_cost::kept_bytes, &layer_cost::update_s}) {
      mean.layers[i].*part = 0;
      for (const auto& each : profiles) mean.layers[i].*part += each.layers[i].*part / count;
    }
  }
  return mean;
}

}  // namespace troupe::engine
