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
#include <memory>
#include <unordered_map>

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

/// One measured pass after another over the same micro-batch.
class profiler {
 public:
  profiler(const model& layers, const stage_options& how, const batch& samples)
      : layers_(layers),
        how_(how),
        labels_(samples.labels.to(how.device)),
        sum_(parameters(layers).size()) {
    input_ = samples.inputs.detach().to(how.device);
    if (how.channels_last && input_.dim() == 4)
      input_ = input_.contiguous(at::MemoryFormat::ChannelsLast);
    for (const auto& [name, tensor] : parameters(layers))
      index_of_.emplace(tensor.unsafeGetTensorImpl(), index_of_.size());
  }

  /// Bytes kept and passed on: what each layer leaves alive while the graph is held by its end.
  void measure_bytes(std::vector<layer_cost>& costs) const {
    const byte_counter bytes;
    at::Tensor x = input_;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const double before = bytes.live();
      x = forward(i, x);
      costs[i].kept_bytes = std::max(0.0, bytes.live() - before);
      costs[i].output_bytes = static_cast<double>(x.nbytes());
      for (const auto& [name, tensor] : layers_[i]->parameters())
        costs[i].parameter_bytes += tensor.nbytes();
    }
  }

  /// Seconds of each layer's forward, backward and deferred weights.
  std::vector<layer_cost> measure_times() {
    std::vector<layer_cost> costs(layers_.size());
    std::vector<at::Tensor> ends{input_};  // ends[i]: what goes into layer i
    stopwatch watch;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      ends.push_back(forward(i, ends.back()));
      costs[i].forward_s = watch.lap();
    }
    auto loss = how_.loss(ends.back(), labels_) * 1.0;
    costs.back().forward_s += watch.lap();

    at::Tensor gradient = at::ones_like(loss);
    at::Tensor end = loss;
    for (std::size_t i = layers_.size(); i-- > 0;) {
      watch.lap();
      gradient = backward(i, ends[i], end, gradient, costs[i]);
      end = ends[i];
      ends[i + 1].reset();
    }
    return costs;
  }

  /// What an optimizer with one buffer a parameter costs: a few passes over its memory.
  void measure_update(std::vector<layer_cost>& costs) const {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      stopwatch watch;
      for (const auto& [name, tensor] : layers_[i]->parameters())
        at::mul(tensor, 0.9).add_(tensor, 0.1).add_(tensor, 0.1);
      costs[i].update_s = watch.lap();
    }
  }

 private:
  at::Tensor forward(std::size_t i, const at::Tensor& x) const {
    const autocast_guard autocast(autocast_type(how_.precision), how_.device.type());
    return run_layer(*layers_[i], x, /*training=*/true);
  }

  at::Tensor backward(std::size_t i, const at::Tensor& begin, const at::Tensor& end,
                      const at::Tensor& gradient, layer_cost& cost) {
    stopwatch watch;
    std::vector<at::Tensor> wanted;
    for (const auto& [name, tensor] : layers_[i]->parameters()) wanted.push_back(tensor);
    const auto parameters = wanted.size();
    if (begin.requires_grad()) wanted.push_back(begin);
    if (wanted.empty() || !end.requires_grad()) return {};
    weight_gradient_collector later;
    const auto found = torch::autograd::grad({end}, wanted, {gradient}, /*retain_graph=*/false,
                                             /*create_graph=*/false, /*allow_unused=*/true);
    cost.input_s = watch.lap();
    for (std::size_t p = 0; p < parameters; ++p) sum_.add(index_of(wanted[p]), found[p]);
    for (auto& task : later.take()) sum_.add(index_of(task.weight), task.gradient());
    cost.weight_s = watch.lap();
    return begin.requires_grad() ? found.back() : at::Tensor();
  }

  [[nodiscard]] std::size_t index_of(const at::Tensor& parameter) const {
    return index_of_.at(parameter.unsafeGetTensorImpl());
  }

  const model& layers_;
  const stage_options& how_;
  at::Tensor input_;   // [n, ...]
  at::Tensor labels_;  // [n, ...] i64
  std::unordered_map<const at::TensorImpl*, std::size_t> index_of_;
  gradient_sum sum_;  // lives from pass to pass, as a step's sum does
};

}  // namespace

model_profile profile_model(const model& layers, const stage_options& how, const batch& samples,
                            int repeats) {
  const at::AutoGradMode recording(true);
  model_profile measured{samples.inputs.size(0), std::vector<layer_cost>(layers.size())};
  auto sample_shape = samples.inputs.sizes().slice(1).vec();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    measured.layers[i].name = layers[i]->name();
    measured.layers[i].macs = layers[i]->macs(sample_shape);
  }
  profiler run(layers, how, samples);
  run.measure_bytes(measured.layers);
  run.measure_update(measured.layers);
  static_cast<void>(run.measure_times());  // warms up
  std::vector<std::vector<layer_cost>> passes;
  passes.reserve(static_cast<std::size_t>(repeats));
  for (int i = 0; i < repeats; ++i) passes.push_back(run.measure_times());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const auto part : {&layer_cost::forward_s, &layer_cost::input_s, &layer_cost::weight_s}) {
      const auto fastest = std::ranges::min_element(
          passes, {}, [&](const std::vector<layer_cost>& pass) { return pass[i].*part; });
      measured.layers[i].*part = (*fastest)[i].*part;
    }
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
