#include "engine/partition/stage_costs.hpp"

#include <algorithm>
#include <utility>

namespace troupe::engine {

stage_costs::stage_costs(model_profile at, const planning& how, const plan& steps)
    : at_(std::move(at)),
      layout_(steps.layout()),
      bytes_per_s_(how.bytes_per_s),
      network_bytes_per_s_(how.network.bytes_per_s),
      optimizer_copies_(how.optimizer_copies),
      gradient_copies_(steps.microbatches > 1 ? 2 : 1),
      input_bytes_(how.sample_bytes * static_cast<double>(how.batch_size) / steps.microbatches),
      on_devices_(how.on_devices),
      credits_(how.credits),
      recompute_(how.recompute),
      nccl_bytes_(how.nccl_bytes),
      sums_(at_.layers.size() + 1),
      held_(steps.stages.size()) {
  for (std::size_t i = 0; i < at_.layers.size(); ++i) {
    const auto& layer = at_.layers[i];
    const bool again = is_recomputed(i);
    auto& sum = sums_[i + 1];
    sum = sums_[i];
    sum.forward_s += layer.forward_s;
    sum.weight_s += layer.weight_s;
    sum.input_s += layer.input_s + (again ? layer.forward_s : 0);
    sum.update_s += layer.update_s;
    sum.parameter_bytes += static_cast<double>(layer.parameter_bytes);
    sum.copied_bytes += layer.copied_bytes;
    sum.kept_bytes += again ? 0 : layer.kept_bytes;
  }
  for (std::uint32_t stage = 0; stage < held_.size(); ++stage) note_held(steps, stage);
}

// A stage's own order decides what it holds, whatever the times.
void stage_costs::note_held(const plan& steps, std::uint32_t stage) {
  held_counts counts(layout_.chunks);
  auto& most = held_[stage];
  const auto below = [](const held_counts& one, const held_counts& other) {
    return std::ranges::equal(one, other, std::ranges::less_equal());
  };
  for (const action& what : steps.stages[stage].actions) {
    if (what.kind == action_kind::input_gradient) continue;
    if (what.kind != action_kind::forward) {
      --counts[what.chunk];
      continue;
    }
    ++counts[what.chunk];
    if (std::ranges::any_of(most, [&](const auto& each) { return below(counts, each); })) continue;
    std::erase_if(most, [&](const auto& each) { return below(each, counts); });
    most.push_back(counts);
  }
}

double stage_costs::edge_bytes(std::uint32_t virtual_stage, std::size_t layer) const {
  if (virtual_stage == 0 || virtual_stage == layout_.virtual_stages()) return 0;
  if (layout_.slice_at(virtual_stage - 1).stage == layout_.slice_at(virtual_stage).stage) return 0;
  return at_.layers[layer - 1].output_bytes;
}

double stage_costs::edge_s(std::uint32_t virtual_stage, std::size_t layer) const {
  return bytes_per_s_ > 0 ? edge_bytes(virtual_stage, layer) / bytes_per_s_ : 0;
}

double stage_costs::transfer_s(std::uint32_t virtual_stage, std::size_t layer) const {
  return network_bytes_per_s_ > 0 ? edge_bytes(virtual_stage, layer) / network_bytes_per_s_ : 0;
}

slice_cost stage_costs::seconds(std::uint32_t virtual_stage, layer_range slice) const {
  const auto &before = sums_[slice.first], &after = sums_[slice.last];
  return {.forward = after.forward_s - before.forward_s + edge_s(virtual_stage + 1, slice.last),
          .input_gradient = after.input_s - before.input_s + edge_s(virtual_stage, slice.first),
          .weight_gradient = after.weight_s - before.weight_s};
}

double stage_costs::slowness(std::uint32_t virtual_stage, layer_range slice) const {
  const auto &before = sums_[slice.first], &after = sums_[slice.last];
  const double work = after.forward_s - before.forward_s + after.input_s - before.input_s +
                      after.weight_s - before.weight_s;
  return std::max(
      {work, 2 * edge_s(virtual_stage, slice.first), 2 * edge_s(virtual_stage + 1, slice.last),
       transfer_s(virtual_stage, slice.first), transfer_s(virtual_stage + 1, slice.last)});
}

stage_costs::kept stage_costs::kept_bytes(layer_range slice) const {
  kept made{sums_[slice.last].kept_bytes - sums_[slice.first].kept_bytes};
  for (std::size_t i = slice.first; i < slice.last;) {
    if (!is_recomputed(i)) {
      ++i;
      continue;
    }
    if (i > slice.first) made.always += at_.layers[i - 1].output_bytes;
    double range = 0;
    for (; i < slice.last && is_recomputed(i); ++i) range += at_.layers[i].kept_bytes;
    made.again = std::max(made.again, range);
  }
  return made;
}

double stage_costs::most_held(std::uint32_t stage, const std::vector<double>& each) const {
  double most = 0;
  for (const auto& counts : held_[stage]) {
    double held = 0;
    for (std::size_t chunk = 0; chunk < each.size(); ++chunk) held += counts[chunk] * each[chunk];
    most = std::max(most, held);
  }
  return most;
}

stage_memory stage_costs::memory(std::uint32_t stage, std::span<const layer_range> slices) const {
  double parameters = 0, copies = 0, waiting = 0, ahead = 0, again = 0;
  std::vector<double> each(slices.size()),
      each_there(slices.size());  // of a micro-batch in a chunk
  for (std::uint32_t chunk = 0; chunk < slices.size(); ++chunk) {
    const auto [first, last] = slices[chunk];
    if (first == last) continue;
    const auto virtual_stage = layout_.virtual_stage_of({stage, chunk});
    const auto micro_batch = kept_bytes(slices[chunk]);
    parameters += sums_[last].parameter_bytes - sums_[first].parameter_bytes;
    copies += sums_[last].copied_bytes - sums_[first].copied_bytes;
    waiting += (edge_bytes(virtual_stage, first) + edge_bytes(virtual_stage + 1, last)) * credits_;
    again = std::max(again, micro_batch.again);
    each[chunk] = micro_batch.always + edge_bytes(virtual_stage, first);
    const double inputs = virtual_stage == 0 ? input_bytes_ : 0;
    each_there[chunk] = each[chunk] + inputs;
    ahead += inputs * credits_;
  }
  const double stays = parameters * (1 + optimizer_copies_);  // whatever the step is at
  const bool by_host = bytes_per_s_ > 0;                      // tensors go to other processes
  return {.on_cpu = stays + parameters * gradient_copies_ + copies + most_held(stage, each) +
                    again + waiting,
          .on_device = stays + parameters + passing_bytes(slices) + most_held(stage, each_there) +
                       again + waiting + ahead,
          .beside_device = std::max(parameters, by_host ? waiting : 0),
          .by_nccl = stage < nccl_bytes_.size() ? nccl_bytes_[stage] : 0};
}

double stage_costs::passing_bytes(std::span<const layer_range> slices) const {
  double output = 0, parameters = 0;
  for (const auto& [first, last] : slices)
    for (auto i = first; i < last; ++i) {
      const auto& layer = at_.layers[i];
      output = std::max({output, layer.output_bytes, layer.loss_bytes});
      parameters = std::max(parameters, static_cast<double>(layer.parameter_bytes));
    }
  return output + (gradient_copies_ > 1 ? parameters : 0);
}

double stage_costs::capped_bytes(std::uint32_t stage, std::span<const layer_range> slices) const {
  const auto all = memory(stage, slices);
  return on_devices_ ? all.of_device() : all.on_cpu;
}

}  // namespace troupe::engine
