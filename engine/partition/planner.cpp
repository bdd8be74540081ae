#include "engine/partition/planner.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <optional>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/simulation.hpp"

namespace troupe::engine {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr std::int64_t most_tried = 64;  // micro-batches, where their number is open

constexpr double layer_cost::*linear_parts[] = {&layer_cost::forward_s, &layer_cost::input_s,
                                                &layer_cost::weight_s, &layer_cost::kept_bytes,
                                                &layer_cost::output_bytes};

/// Layers with their costs at one size, and sums that give any range of them.
class stage_costs {
 public:
  stage_costs(const model_profile& at, const planning& how)
      : at_(at), how_(how), sums_(at.layers.size() + 1) {
    for (std::size_t i = 0; i < at.layers.size(); ++i) {
      const auto& layer = at.layers[i];
      const bool again = is_recomputed(i);
      auto& sum = sums_[i + 1];
      sum = sums_[i];
      sum.forward_s += layer.forward_s;
      sum.weight_s += layer.weight_s;
      sum.backward_s += layer.input_s + layer.weight_s + (again ? layer.forward_s : 0);
      sum.update_s += layer.update_s;
      sum.parameter_bytes += static_cast<double>(layer.parameter_bytes);
      sum.kept_bytes += again ? 0 : layer.kept_bytes;
    }
  }

  [[nodiscard]] std::size_t layers() const { return at_.layers.size(); }

  /// Seconds of a micro-batch's arithmetic in layers [first, last).
  [[nodiscard]] double forward_s(std::size_t first, std::size_t last) const {
    return sums_[last].forward_s - sums_[first].forward_s;
  }
  [[nodiscard]] double weight_s(std::size_t first, std::size_t last) const {
    return sums_[last].weight_s - sums_[first].weight_s;
  }
  [[nodiscard]] double backward_s(std::size_t first, std::size_t last) const {
    return sums_[last].backward_s - sums_[first].backward_s;
  }
  [[nodiscard]] double update_s(std::size_t first, std::size_t last) const {
    return sums_[last].update_s - sums_[first].update_s;
  }

  /// Bytes of a micro-batch that cross into layer `at`: none at either end of the model.
  [[nodiscard]] double edge_bytes(std::size_t at) const {
    return at == 0 || at == layers() ? 0 : at_.layers[at - 1].output_bytes;
  }
  [[nodiscard]] double edge_s(std::size_t at) const {
    return how_.bytes_per_s > 0 ? edge_bytes(at) / how_.bytes_per_s : 0;
  }

  /// As slow as its arithmetic or one of its edges, both ways.
  [[nodiscard]] double slowness(std::size_t first, std::size_t last) const {
    const double work = forward_s(first, last) + backward_s(first, last);
    return std::max({work, 2 * edge_s(first), 2 * edge_s(last)});
  }

  /// Weights, their gradients (the sum and the micro-batch's own), the optimizer's state, what
  /// `held` micro-batches keep, and what may wait on the edges.
  [[nodiscard]] double memory_bytes(std::size_t first, std::size_t last, double held) const {
    const double parameters = sums_[last].parameter_bytes - sums_[first].parameter_bytes;
    const double waiting = (edge_bytes(first) + edge_bytes(last)) * how_.credits;
    double kept = sums_[last].kept_bytes - sums_[first].kept_bytes;
    double again = 0;  // of the largest recomputed range, while its backward runs
    for (std::size_t i = first; i < last;) {
      if (!is_recomputed(i)) {
        ++i;
        continue;
      }
      if (i > first) kept += at_.layers[i - 1].output_bytes;
      double range = 0;
      for (; i < last && is_recomputed(i); ++i) range += at_.layers[i].kept_bytes;
      again = std::max(again, range);
    }
    return parameters * (3 + how_.optimizer_copies) + held * (kept + edge_bytes(first)) + again +
           waiting;
  }

 private:
  struct running_sum {
    double forward_s = 0, backward_s = 0, weight_s = 0, update_s = 0, parameter_bytes = 0,
           kept_bytes = 0;
  };

  [[nodiscard]] bool is_recomputed(std::size_t layer) const {
    return layer < how_.recompute.size() && how_.recompute[layer];
  }

  const model_profile& at_;
  const planning& how_;
  std::vector<running_sum> sums_;
};

/// The best way to run the first `end` layers in some number of stages.
struct best_cut {
  double worst = infinite;
  std::size_t last_begin = 0;
};

/// Cuts that make the largest `cost(stage, first, last)` as small as can be; nullopt where every
/// cut costs infinity.
template <class Cost>
std::optional<std::vector<std::size_t>> minimax(std::size_t stages, std::size_t layers, Cost cost) {
  std::vector<std::vector<best_cut>> best(1, std::vector<best_cut>(layers + 1));
  best[0][0].worst = 0;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    std::vector<best_cut> after(layers + 1);
    for (std::size_t end = stage + 1; end + (stages - stage - 1) <= layers; ++end) {
      for (std::size_t begin = stage; begin < end; ++begin) {
        if (best[stage][begin].worst == infinite) continue;
        const double worst = std::max(best[stage][begin].worst, cost(stage, begin, end));
        if (worst != infinite && worst <= after[end].worst) after[end] = {worst, begin};
      }
    }
    best.push_back(std::move(after));
  }
  if (best[stages][layers].worst == infinite) return std::nullopt;
  std::vector<std::size_t> cuts(stages - 1);
  std::size_t end = layers;
  for (std::size_t stage = stages - 1; stage > 0; --stage)
    end = cuts[stage - 1] = best[stage + 1][end].last_begin;
  return cuts;
}

double images_each(const planning& how, std::uint32_t microbatches) {
  return static_cast<double>(how.batch_size) / microbatches;
}

/// How many micro-batches each stage holds at once.
result<std::vector<std::uint32_t>> held_by_stages(const planning& how, std::uint32_t microbatches) {
  const auto plan = plan_step({how.schedule}, how.stages, microbatches);
  if (!plan) return tl::unexpected(plan.error());
  const auto played = simulate(*plan, std::vector<slice_cost>(how.stages));
  if (!played) return tl::unexpected(played.error());
  return played->peak_activations;
}

result<void> check_cuts(const std::vector<std::size_t>& cuts, std::size_t layers,
                        std::size_t stages) {
  std::size_t before = 0;
  for (const auto cut : cuts) {
    if (cut <= before || cut >= layers)
      return fail(errc::bad_config,
                  "cuts must rise from 1 to below the number of layers, " + std::to_string(layers));
    before = cut;
  }
  if (cuts.size() + 1 == stages) return {};
  return fail(errc::bad_config, std::to_string(cuts.size()) + " cuts make " +
                                    std::to_string(cuts.size() + 1) + " stages, not " +
                                    std::to_string(stages));
}

std::string mebibytes(double bytes) {
  return std::to_string(static_cast<std::uint64_t>(std::ceil(bytes / (1 << 20)))) + " MiB";
}

}  // namespace

result<cost_model> cost_model::fit(const std::vector<model_profile>& profiles) {
  if (profiles.empty() || profiles.size() > 2 || profiles.front().images < 1)
    return fail(errc::bad_config, "a cost model needs one or two profiles");
  cost_model made;
  const auto& one = profiles.front();
  const auto& other = profiles.back();
  if (one.layers.size() != other.layers.size())
    return fail(errc::bad_config, "the profiles are of different models");
  made.fixed_ = made.an_image_ = one;
  const auto apart = static_cast<double>(other.images - one.images);
  for (std::size_t i = 0; i < one.layers.size(); ++i) {
    for (const auto part : linear_parts) {
      const double here = one.layers[i].*part;
      const double slope = apart != 0 ? std::max(0.0, (other.layers[i].*part - here) / apart)
                                      : here / static_cast<double>(one.images);
      made.an_image_.layers[i].*part = slope;
      made.fixed_.layers[i].*part = std::max(0.0, here - slope * static_cast<double>(one.images));
    }
  }
  return made;
}

model_profile cost_model::at(double images) const {
  model_profile made = fixed_;
  made.images = static_cast<std::int64_t>(std::llround(images));
  for (std::size_t i = 0; i < made.layers.size(); ++i)
    for (const auto part : linear_parts) made.layers[i].*part += an_image_.layers[i].*part * images;
  return made;
}

std::vector<std::size_t> prediction::cuts() const {
  std::vector<std::size_t> made;
  for (std::size_t i = 1; i < stages.size(); ++i) made.push_back(stages[i].first);
  return made;
}

result<rehearsal> rehearse(const cost_model& costs, const planning& how, std::uint32_t microbatches,
                           const std::vector<std::size_t>& cuts) {
  if (auto sound = check_cuts(cuts, costs.layers(), how.stages); !sound)
    return tl::unexpected(sound.error());
  auto steps = plan_step({how.schedule}, how.stages, microbatches);
  if (!steps) return tl::unexpected(steps.error());
  const auto layers = costs.at(images_each(how, microbatches));
  const stage_costs ranges(layers, how);
  std::vector<slice_cost> seconds;
  for (std::size_t s = 0; s < how.stages; ++s) {
    const auto first = s == 0 ? 0 : cuts[s - 1];
    const auto last = s == cuts.size() ? costs.layers() : cuts[s];
    const double weight_s = ranges.weight_s(first, last);
    seconds.push_back(
        {.forward = ranges.forward_s(first, last) + ranges.edge_s(last),
         .input_gradient = ranges.backward_s(first, last) + ranges.edge_s(first) - weight_s,
         .weight_gradient = weight_s});
  }
  auto run = simulate(*steps, seconds);
  if (!run) return tl::unexpected(run.error());
  return rehearsal{std::move(*steps), std::move(seconds), std::move(*run)};
}

result<prediction> predict(const cost_model& costs, const planning& how, std::uint32_t microbatches,
                           const std::vector<std::size_t>& cuts) {
  const auto played = rehearse(costs, how, microbatches, cuts);
  if (!played) return tl::unexpected(played.error());
  const auto& held = played->run.peak_activations;
  const auto layers = costs.at(images_each(how, microbatches));
  const stage_costs ranges(layers, how);

  prediction made{.microbatches = microbatches, .stages = {}};
  double updates = 0;
  for (std::size_t s = 0; s < how.stages; ++s) {
    const auto first = s == 0 ? 0 : cuts[s - 1];
    const auto last = s == cuts.size() ? costs.layers() : cuts[s];
    stage_prediction stage{first, last};
    const auto& seconds = played->costs[s];
    stage.forward_s = seconds.forward;
    stage.backward_s = seconds.of(action_kind::backward);
    stage.busy_s =
        microbatches * (stage.forward_s + stage.backward_s) + ranges.update_s(first, last);
    stage.memory_bytes = ranges.memory_bytes(first, last, held[s]);
    stage.sent_bytes = microbatches * (ranges.edge_bytes(first) + ranges.edge_bytes(last));
    updates = std::max(updates, ranges.update_s(first, last));
    made.stages.push_back(stage);
  }

  double busy = 0;
  for (const auto& stage : made.stages) busy += stage.busy_s;
  const double at_once = std::max<double>(1, how.cores / std::max(1U, how.threads_per_stage));
  made.step_s = std::max(played->run.makespan + updates, busy / std::min<double>(at_once, how.stages));
  made.bubble = std::max(0.0, 1 - busy / (made.step_s * how.stages));
  return made;
}

result<std::vector<std::size_t>> plan_cuts(const cost_model& costs, const planning& how,
                                           std::uint32_t microbatches) {
  if (how.stages > costs.layers() || how.stages == 0)
    return fail(errc::bad_config, "cannot cut " + std::to_string(costs.layers()) + " layers into " +
                                      std::to_string(how.stages) +
                                      " stages: every stage needs at least one layer");
  const auto held = held_by_stages(how, microbatches);
  if (!held) return tl::unexpected(held.error());
  const auto layers = costs.at(images_each(how, microbatches));
  const stage_costs ranges(layers, how);
  const auto memory = [&](std::size_t stage, std::size_t first, std::size_t last) {
    return ranges.memory_bytes(first, last, (*held)[stage]);
  };
  const double cap = how.memory_cap_bytes;
  const auto fastest = minimax(how.stages, costs.layers(),
                               [&](std::size_t stage, std::size_t first, std::size_t last) {
                                 if (cap > 0 && memory(stage, first, last) > cap) return infinite;
                                 return ranges.slowness(first, last);
                               });
  if (fastest) return *fastest;
  const auto smallest = minimax(how.stages, costs.layers(), memory);
  double least = 0;
  for (std::size_t s = 0; smallest && s < how.stages; ++s)
    least = std::max(least, memory(s, s == 0 ? 0 : (*smallest)[s - 1],
                                   s == smallest->size() ? costs.layers() : (*smallest)[s]));
  return fail(errc::bad_config, "no partition into " + std::to_string(how.stages) +
                                    " stages with " + std::to_string(microbatches) +
                                    " micro-batches keeps every stage within " + mebibytes(cap) +
                                    "; the least cap that would do is " + mebibytes(least));
}

std::vector<std::uint32_t> microbatches_to_try(const planning& how) {
  const auto most = std::clamp<std::int64_t>(how.batch_size / 2, 1, most_tried);
  std::vector<std::uint32_t> numbers(static_cast<std::size_t>(most));
  std::iota(numbers.begin(), numbers.end(), 1U);
  return numbers;
}

result<prediction> plan_microbatches(const cost_model& costs, const planning& how,
                                     const std::vector<std::uint32_t>& candidates,
                                     const std::vector<std::size_t>* cuts) {
  std::optional<prediction> best;
  std::optional<error> refused;
  for (const auto microbatches : candidates) {
    const auto here =
        cuts ? result<std::vector<std::size_t>>(*cuts) : plan_cuts(costs, how, microbatches);
    if (!here) {
      refused = here.error();  // more micro-batches need less memory: the last one is the nearest
      continue;
    }
    auto made = predict(costs, how, microbatches, *here);
    if (!made) return made;
    if (!best || made->step_s < best->step_s) best = std::move(*made);
  }
  if (best) return *best;
  if (refused) return tl::unexpected(*refused);
  return fail(errc::bad_config, "there is no number of micro-batches to choose from");
}

}  // namespace troupe::engine
