#include "engine/stage/stage_module.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>

#include "engine/autograd/autocast.hpp"
#include "engine/collective/tree.hpp"
#include "engine/model/model.hpp"
#include "engine/model/recompute.hpp"

namespace troupe::engine {

stage_module::stage_module(model layers, stage_options options)
    : layers_(std::move(layers)),
      options_(std::move(options)),
      parameters_(engine::parameters(layers_)),
      buffers_(engine::buffers(layers_)),
      gradients_(1, gradient_sum(parameters_.size())),
      ties_(engine::ties(layers_)),
      statistics_(buffers_),
      weights_(
          [this](const step_key& step, microbatch_id microbatch, const weight_task& task,
                 at::Tensor gradient) {
            add_deferred(step, microbatch, task, std::move(gradient));
          },
          options_.idle_cores) {
  options_.recompute.resize(layers_.size(), false);
  if (!options_.streams) options_.streams = std::make_shared<device_streams>(options_.device);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    index_of_.emplace(parameters_[i].tensor.unsafeGetTensorImpl(), i);
}

at::Tensor stage_module::prepare(const at::Tensor& input) const {
  auto x = streams().take(input.detach(), {});
  if (options_.channels_last && x.dim() == 4) x = x.contiguous(at::MemoryFormat::ChannelsLast);
  return x;
}

at::Tensor stage_module::run_layers(at::Tensor x, bool training) const {
  const autocast_guard autocast(autocast_type(options_.precision), options_.device.type());
  const std::span all(layers_);
  for (std::size_t i = 0; i < all.size();) {
    std::size_t end = i;  // of the layers from here on that are recomputed
    while (training && end < all.size() && options_.recompute[end]) ++end;
    x = end > i ? run_recomputed(all.subspan(i, end - i), x) : run_layer(*all[i], x, training);
    i = std::max(end, i + 1);
  }
  return x;
}

// Operators may return a parameter itself, and statistics are updated in place.
watched_storages stage_module::made_under(std::optional<storage_watch>& watch) const {
  auto made = watch->take();
  watch.reset();
  for (const auto& parameter : parameters_) made.leave_out(parameter.tensor);
  for (const auto& buffer : buffers_) made.leave_out(buffer.tensor);
  return made;
}

void stage_module::begin(const step_key& step, const step_terms& terms, gradient_taker take,
                         gradient_room room) {
  losses_.erase(step);  // of a step of this key that has failed
  auto& begun = begun_[step] = {terms, std::move(take), std::move(room)};
  begun.missing = std::reduce(terms.shares.begin(), terms.shares.end(), std::uint64_t{0});
  // Where nobody says which backward is the last, no gradient is known to be final.
  if (begun.missing == 0) begun.take = nullptr;
  if (!begun.take) begun.room = nullptr;
  if (begun.take) begun.deferred.resize(parameters_.size());
  while (gradients_.size() < terms.shares.size()) gradients_.emplace_back(parameters_.size());
}

gradient_sum& stage_module::sum_of(const step_key& step, microbatch_id microbatch) {
  const auto begun = begun_.find(step);
  if (begun == begun_.end()) return gradients_.front();
  std::size_t which = 0;
  std::uint64_t end = 0;
  for (const auto share : begun->second.terms.shares) {
    end += share;
    if (microbatch.value < end) return gradients_[which];
    ++which;
  }
  return gradients_.front();
}

void stage_module::end(const step_key& step, bool keep) {
  const auto begun = begun_.extract(step);
  statistics_.forget(step);
  if (!begun || keep) return;
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < begun.mapped().buffers.size(); ++i)
    buffers_[i].tensor.detach().copy_(begun.mapped().buffers[i]);
}

forward_pass stage_module::pass_of(const step_key& step, microbatch_id microbatch) {
  const auto found = begun_.find(step);
  if (found == begun_.end()) return {random_of(options_.seed, step.step.value, microbatch.value)};
  copy_buffers_of(step);
  const auto& terms = found->second.terms;
  return {random_of(options_.seed, terms.number, terms.first_microbatch + microbatch.value)};
}

void stage_module::copy_buffers_of(const step_key& step) {
  const auto found = begun_.find(step);
  if (found == begun_.end() || !found->second.terms.reversible || !found->second.buffers.empty())
    return;
  for (const auto& each : buffers_) found->second.buffers.push_back(each.tensor.clone());
}

void stage_module::fold_statistics(const step_key& step,
                                   const std::vector<step_statistics>& of_replicas) {
  copy_buffers_of(step);
  for (const auto& each : of_replicas) statistics_.fold(each);
}

forward_outcome stage_module::forward(const step_key& step, step_kind kind,
                                      microbatch_id microbatch, const at::Tensor& input,
                                      const at::Tensor& labels, std::int64_t batch_size) {
  const bool training = kind == step_kind::training;
  const at::AutoGradMode recording(training);
  // Before the watch: the copies of statistics are not the context's.
  auto place = training ? pass_of(step, microbatch) : forward_pass();
  std::vector<fresh_statistic> fresh;
  const auto begun = begun_.find(step);
  if (training && begun != begun_.end() && begun->second.terms.keeps_statistics)
    place.fresh = &fresh;
  const pass_scope pass(place);
  std::optional<storage_watch> watch;
  if (training) watch.emplace();
  auto leaf = prepare(input);
  if (training && !options_.is_first) leaf.requires_grad_(true);
  auto output = run_layers(leaf, training);

  forward_outcome outcome;
  if (options_.is_last && !training && !labels.defined()) {
    outcome.activation = output;
  } else if (options_.is_last) {
    const auto targets = streams().take(labels, {});
    const double weight = static_cast<double>(input.size(0)) / static_cast<double>(batch_size);
    const auto loss = options_.loss(output, targets);
    std::vector<at::Tensor> metrics;
    if (!training) metrics = sums_of(options_.metrics, {output, targets, loss});
    output = loss * weight;
    note_loss(step, {microbatch, output.detach(), std::move(metrics)}, outcome);
  } else {
    outcome.activation = output.detach();
  }
  if (!training) return outcome;
  auto made = made_under(watch);
  made.leave_out(input);
  made.leave_out(labels);
  for (const auto& each : fresh) made.leave_out(each.value);
  statistics_.note(step, microbatch, fresh);
  made.leave_out(output);  // counted with the context, as is the leaf that it keeps
  if (!options_.is_first) made.leave_out(leaf);
  contexts_.put(step, microbatch,
                {options_.is_first ? at::Tensor() : std::move(leaf), std::move(output)});
  contexts_.charge(step, microbatch, made);
  contexts_.count(step, microbatch);
  return outcome;
}

void stage_module::note_loss(const step_key& step, waiting_loss fresh, forward_outcome& outcome) {
  if (!options_.device.is_cpu()) return losses_[step].push_back(std::move(fresh));
  outcome.loss = fresh.loss.item<double>();
  for (const auto& each : fresh.metrics) outcome.metrics.push_back(each.item<double>());
}

std::vector<waiting_loss> stage_module::take_waiting_losses(const step_key& step) {
  auto taken = losses_.extract(step);
  losses_.erase(losses_.begin(), losses_.lower_bound(step));  // of steps that failed
  return taken ? std::move(taken.mapped()) : std::vector<waiting_loss>();
}

std::vector<microbatch_loss> stage_module::take_losses(const step_key& step) {
  const auto taken = take_waiting_losses(step);
  if (taken.empty()) return {};
  std::vector<at::Tensor> values;
  for (const auto& each : taken) {
    values.push_back(each.loss);
    values.insert(values.end(), each.metrics.begin(), each.metrics.end());
  }
  values = to_host(values);
  std::vector<microbatch_loss> known;
  auto next = values.begin();
  for (const auto& each : taken) {
    known.push_back({each.microbatch, (next++)->item<double>()});
    for (std::size_t i = 0; i < each.metrics.size(); ++i)
      known.back().metrics.push_back((next++)->item<double>());
  }
  return known;
}

at::Tensor stage_module::backward_input(const step_key& step, microbatch_id microbatch,
                                        const at::Tensor& gradient) {
  auto context = contexts_.take(step, microbatch);
  if (!context) throw std::logic_error("backward of a micro-batch that has not gone forward");
  if (!context->output.requires_grad()) {  // nothing to train up to here
    context.reset();
    contexts_.count(step, microbatch);
    return {};
  }
  std::vector<at::Tensor> wanted;
  wanted.reserve(parameters_.size() + 1);
  for (const auto& parameter : parameters_) wanted.push_back(parameter.tensor);
  if (!options_.is_first) wanted.push_back(context->input);

  std::vector<at::Tensor> seeds;
  if (gradient.defined()) seeds.push_back(streams().take(gradient, {}));
  weight_gradient_collector later;
  std::optional<storage_watch> watch(std::in_place);
  auto gradients = torch::autograd::grad({context->output}, wanted, seeds,
                                         /*retain_graph=*/false, /*create_graph=*/false,
                                         /*allow_unused=*/true);
  auto made = made_under(watch);
  made.leave_out(gradient);
  for (const auto& each : seeds) made.leave_out(each);
  for (const auto& each : gradients) made.leave_out(each);  // for the sums and the slice before
  at::Tensor input_gradient;
  if (!options_.is_first) {
    input_gradient = std::move(gradients.back());
    gradients.pop_back();
  }
  {
    const auto room = room_in(step);
    sum_of(step, microbatch).add(gradients);
  }
  context.reset();
  contexts_.charge(step, microbatch, made);
  defer(step, microbatch, later.take());
  contexts_.count(step, microbatch);
  return input_gradient;
}

std::shared_ptr<void> stage_module::room_in(const step_key& step) const {
  const auto found = begun_.find(step);
  return found != begun_.end() && found->second.room ? found->second.room() : nullptr;
}

void stage_module::defer(const step_key& step, microbatch_id microbatch,
                         std::vector<weight_task> tasks) {
  const auto found = begun_.find(step);
  if (found == begun_.end() || !found->second.take)
    return weights_.put(step, microbatch, std::move(tasks));
  auto& begun = found->second;
  for (auto& task : tasks) {
    ++begun.deferred.at(index_of_.at(task.weight.unsafeGetTensorImpl()));
    if (begun.room)  // a helper's gradients lie there too
      task.gradient = [room = begun.room, compute = std::move(task.gradient)] {
        const auto open = room();
        return compute();
      };
  }
  weights_.put(step, microbatch, std::move(tasks));
  if (begun.missing == 0 || --begun.missing > 0) return;
  const auto room = room_in(step);
  for (auto i = parameters_.size(); i-- > 0;)
    if (begun.deferred[i] == 0) hand_over(begun, i);
}

void stage_module::add_deferred(const step_key& step, microbatch_id microbatch,
                                const weight_task& task, at::Tensor gradient) {
  const auto parameter = index_of_.at(task.weight.unsafeGetTensorImpl());
  const auto room = room_in(step);
  if (gradient.defined())
    sum_of(step, microbatch).add(parameter, std::move(gradient));
  else
    sum_of(step, microbatch).add(parameter, task);
  const auto found = begun_.find(step);
  if (found == begun_.end() || !found->second.take) return;
  if (--found->second.deferred.at(parameter) == 0 && found->second.missing == 0)
    hand_over(found->second, parameter);
}

void stage_module::hand_over(begun_step& step, std::size_t parameter) {
  std::vector<std::optional<at::Tensor>> parts;
  parts.reserve(gradients_.size());
  for (auto& each : gradients_) parts.push_back(each.take(parameter));
  step.take(parameter, tree_sum(std::move(parts), add_gradients));
}

void stage_module::backward_weights(const step_key& step, microbatch_id microbatch) {
  weights_.finish(step, microbatch);
  contexts_.count(step, microbatch);
}

step_gradients stage_module::take_gradients() {
  auto sums = take_sums();
  sum_ties(parameters_, ties_, sums);
  return sums;
}

step_gradients stage_module::take_sums() {
  std::vector<step_gradients> parts;
  parts.reserve(gradients_.size());
  for (auto& each : gradients_) parts.push_back(each.take());
  return tree_sum(std::move(parts), add_each);
}

}  // namespace troupe::engine
