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
#include <exception>
#include <memory>

#include "engine/autograd/autocast.hpp"
#include "engine/model/model.hpp"
#include "messages/base/format.hpp"

namespace troupe::engine {
namespace {

/// Thrown by an operator that allocates more than it may.
struct over_bound : std::exception {};

/// Counts the bytes of tensors that this thread's operators allocate and free while it lives. What
/// would make them more than `most` is refused when it is allocated, before any page of it is used.
class byte_counter {
 public:
  /// `is_over` is set when that happens, for layers may throw something else then.
  byte_counter(double most, bool& is_over)
      : count_(std::make_shared<counter>(most, is_over)),
        guard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}

  [[nodiscard]] double live() const { return static_cast<double>(count_->live); }
  /// The most at once since `begin_peak`.
  [[nodiscard]] double peak() const { return static_cast<double>(count_->peak); }
  void begin_peak() const { count_->peak = count_->live; }

 private:
  struct counter final : c10::MemoryReportingInfoBase {
    counter(double bytes, bool& over) : most(bytes), is_over(over) {}

    void reportMemoryUsage(void* /*at*/, std::int64_t bytes, std::size_t /*allocated*/,
                           std::size_t /*reserved*/, c10::Device /*device*/) override {
      live += bytes;
      peak = std::max(peak, live);
      if (bytes <= 0 || static_cast<double>(live) <= most) return;
      is_over = true;
      throw over_bound();
    }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }

    std::int64_t live = 0, peak = 0;
    double most;
    bool& is_over;
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
  profiler(const stage_options& how, const batch& samples, std::size_t model_bytes, double most)
      : how_(how), labels_(samples.labels.to(how.device)), sweep_(model_bytes), most_(most) {
    input_ = samples.inputs.detach().to(how.device);
    if (how.channels_last && input_.dim() == 4)
      input_ = input_.contiguous(at::MemoryFormat::ChannelsLast);
  }

  /// `is_last`: the loss is behind it.
  void measure(layer& which, bool is_last, int repeats, layer_cost& cost) {
    const auto parameters = which.parameters();
    gradient_sum sum(parameters.size());  // lives from pass to pass, as a step's sum does
    const auto output = measure_bytes(which, is_last, cost);
    if (repeats > 0) {
      measure_update(parameters, cost);
      static_cast<void>(measure_times(which, parameters, is_last, sum));  // warms up
    }
    for (int i = 0; i < repeats; ++i) {
      const auto pass = measure_times(which, parameters, is_last, sum);
      for (const auto part : {&layer_cost::forward_s, &layer_cost::input_s, &layer_cost::weight_s})
        cost.*part = i == 0 ? pass.*part : std::min(cost.*part, pass.*part);
    }
    if (is_last) return;
    input_ = output.detach();
    input_bytes_ = static_cast<double>(input_.nbytes());
    if (output.requires_grad()) input_.requires_grad_();
  }

  /// Whether a layer was refused more memory.
  [[nodiscard]] bool is_over() const { return is_over_; }

 private:
  /// Bytes of copies, of what is kept, and of what is passed on: what a pass leaves behind, and
  /// what the next one leaves alive while its output is there. Nothing follows the last layer.
  at::Tensor measure_bytes(layer& which, bool is_last, layer_cost& cost) {
    for (const auto& [name, tensor] : which.parameters()) cost.parameter_bytes += tensor.nbytes();
    const byte_counter bytes(most_ - input_bytes_ - static_cast<double>(cost.parameter_bytes),
                             is_over_);
    pass_once(which);
    cost.copied_bytes = std::max(0.0, bytes.live());
    const auto input = as_in_a_model(input_);
    if (is_last) {
      measure_loss_bytes(which, input, bytes, cost);
      return {};
    }
    const double before = bytes.live();
    const auto output = forward(which, input);
    cost.kept_bytes = std::max(0.0, bytes.live() - before);
    cost.output_bytes = static_cast<double>(output.nbytes());
    return output;
  }

  /// The same of the last layer, whose output only the loss has: what both leave alive, and the
  /// most that they have at once, forward and backward.
  void measure_loss_bytes(layer& which, const at::Tensor& input, const byte_counter& bytes,
                          layer_cost& cost) const {
    const double before = bytes.live();
    bytes.begin_peak();
    const auto loss = [&] {
      const auto output = forward(which, input);
      cost.output_bytes = static_cast<double>(output.nbytes());
      return how_.loss(output, labels_);
    }();
    cost.kept_bytes = std::max(0.0, bytes.live() - before);
    std::vector<at::Tensor> wanted;
    for (const auto& [name, tensor] : which.parameters()) wanted.push_back(tensor);
    if (input.requires_grad()) wanted.push_back(input);
    if (!wanted.empty() && loss.requires_grad()) {
      const weight_gradient_collector dropped;
      static_cast<void>(torch::autograd::grad({loss}, wanted, {}, /*retain_graph=*/false,
                                              /*create_graph=*/false, /*allow_unused=*/true));
    }
    cost.loss_bytes = std::max(0.0, bytes.peak() - before - cost.kept_bytes);
  }

  /// Forward, and backward without the weights' gradients.
  void pass_once(layer& which) const {
    const auto input = input_.requires_grad() ? input_.clone().detach().requires_grad_() : input_;
    const auto output = forward(which, input);
    if (!input.requires_grad() || !output.requires_grad()) return;
    const weight_gradient_collector dropped;
    static_cast<void>(torch::autograd::grad({output}, {input}, {at::ones_like(output)}));
  }

  /// What an optimizer with one buffer a parameter costs: `update_passes` over its memory.
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
  at::Tensor input_;        // [n, ...]
  at::Tensor labels_;       // [n, ...] i64
  double input_bytes_ = 0;  // of what a layer gave: the samples are not counted
  cache_sweep sweep_;
  double most_;  // bytes at one time
  bool is_over_ = false;
};

}  // namespace

std::vector<double> least_profile_bytes(const model& described,
                                        std::vector<std::int64_t> sample_shape,
                                        std::int64_t samples, double value_bytes) {
  const auto bytes_now = [&] {
    double values = static_cast<double>(samples);
    for (const auto side : sample_shape) values *= static_cast<double>(side);
    return values * value_bytes;
  };
  std::vector<double> all;
  for (const auto& each : described) {
    double weights = 0;
    for (const auto& [name, tensor] : each->parameters())
      weights += static_cast<double>(tensor.nbytes());
    const double given = bytes_now();
    static_cast<void>(each->macs(sample_shape));
    const double copy = all.empty() ? 0 : given;  // nothing is propagated back to samples
    const double gives = all.empty() && weights == 0 ? 0 : bytes_now();
    all.push_back(weights + given + copy + gives);
  }
  return all;
}

result<model_profile> profile_model(const model_blueprint& of, const stage_options& how,
                                    const batch& samples, int repeats,
                                    const profile_bounds& within) {
  const at::AutoGradMode recording(true);
  const auto described = describe(of);
  if (!described) return tl::unexpected(described.error());
  const auto count = described->size();
  model_profile measured{samples.inputs.size(0), std::vector<layer_cost>(count)};
  auto sample_shape = samples.inputs.sizes().slice(1).vec();
  profiler run(how, samples, bytes_of(parameters(*described)), within.bytes);
  for (std::size_t i = 0; i < count; ++i) {
    if (within.begins) within.begins(i);
    auto& cost = measured.layers[i];
    cost.name = described->at(i)->name();
    cost.macs = described->at(i)->macs(sample_shape);
    model one;
    auto made = make_any(of, i);
    if (!made) return tl::unexpected(made.error());
    one.push_back(std::move(*made));
    to_memory_format(one, how.channels_last);
    try {
      run.measure(*one.front(), i + 1 == count, repeats, cost);
    } catch (const std::exception&) {
      if (!run.is_over()) throw;
      return fail(
          errc::bad_config,
          format("the layer '%s' takes more than %.0f MiB for a micro-batch of %lld samples",
                 cost.name.c_str(), within.bytes / (1 << 20),
                 static_cast<long long>(measured.samples)));
    }
  }
  return measured;
}

model_profile mean_of(const std::vector<model_profile>& profiles) {
  model_profile mean = profiles.front();
  const auto count = static_cast<double>(profiles.size());
  for (std::size_t i = 0; i < mean.layers.size(); ++i)
    for (const auto part : {&layer_cost::forward_s, &layer_cost::input_s, &layer_cost::weight_s,
                            &layer_cost::kept_bytes, &layer_cost::update_s}) {
      mean.layers[i].*part = 0;
      for (const auto& each : profiles) mean.layers[i].*part += each.layers[i].*part / count;
    }
  return mean;
}

}  // namespace troupe::engine
