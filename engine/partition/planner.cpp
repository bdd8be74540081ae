#include "engine/partition/planner.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "engine/partition/cut_search.hpp"
#include "engine/partition/partition.hpp"
#include "engine/partition/stage_costs.hpp"

namespace troupe::engine {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr std::int64_t most_tried = 64;     // micro-batches, where their number is open
constexpr std::size_t most_compared = 128;  // cuts of stages with several slices

using cut_list = std::vector<std::size_t>;

/// One step: its plan, and what the slices of the model cost in it.
struct step_model {
  plan steps;
  stage_costs costs;
};

result<step_model> model_step(const cost_model& costs, const planning& how,
                              std::uint32_t microbatches) {
  auto steps = plan_step(how.schedule, how.stages, microbatches);
  if (!steps) return tl::unexpected(steps.error());
  const double samples = static_cast<double>(how.batch_size) / microbatches;
  stage_costs made(costs.at(samples), how, *steps);
  return step_model{std::move(*steps), std::move(made)};
}

result<void> check_cuts(const cut_list& cuts, const stage_costs& costs) {
  std::size_t before = 0;
  for (const auto cut : cuts) {
    if (cut <= before || cut >= costs.layers())
      return fail(errc::bad_config, "cuts must rise from 1 to below the number of layers, " +
                                        std::to_string(costs.layers()));
    before = cut;
  }
  const auto& layout = costs.layout();
  if (cuts.size() + 1 == layout.virtual_stages()) return {};
  return fail(errc::bad_config, std::to_string(cuts.size()) + " cuts make " +
                                    std::to_string(cuts.size() + 1) + " slices, not " +
                                    std::to_string(layout.virtual_stages()) + " for " +
                                    std::to_string(layout.stages) + " stages");
}

std::string mebibytes(double bytes) {
  return std::to_string(static_cast<std::uint64_t>(std::ceil(bytes / (1 << 20)))) + " MiB";
}

std::vector<layer_range> slices_of(std::uint32_t stage, const model_layout& layout,
                                   const std::vector<layer_range>& all) {
  std::vector<layer_range> slices;
  for (std::uint32_t chunk = 0; chunk < layout.chunks; ++chunk)
    slices.push_back(all[layout.virtual_stage_of({stage, chunk})]);
  return slices;
}

double largest_memory(const stage_costs& costs, const cut_list& cuts) {
  const auto all = slices_between(cuts, costs.layers());
  double largest = 0;
  for (std::uint32_t stage = 0; stage < costs.layout().stages; ++stage)
    largest = std::max(largest, costs.capped_bytes(stage, slices_of(stage, costs.layout(), all)));
  return largest;
}

std::vector<slice_cost> seconds_of(const stage_costs& costs, const cut_list& cuts) {
  std::vector<slice_cost> seconds;
  for (const auto& slice : slices_between(cuts, costs.layers()))
    seconds.push_back(costs.seconds(static_cast<std::uint32_t>(seconds.size()), slice));
  return seconds;
}

message_times times_of(const stage_costs& costs, const planning& how, const cut_list& cuts) {
  message_times times{.latency = how.network.latency_s};
  for (const auto& slice : slices_between(cuts, costs.layers()))
    times.transfer.push_back(
        costs.transfer_s(static_cast<std::uint32_t>(times.transfer.size()), slice.first));
  return times;
}

result<simulation> play(const step_model& step, const planning& how, const cut_list& cuts) {
  return simulate(step.steps, seconds_of(step.costs, cuts), times_of(step.costs, how, cuts));
}

stage_prediction predict_stage(std::uint32_t stage, const step_model& step,
                               const std::vector<layer_range>& all) {
  const auto& [steps, costs] = step;
  const auto& layout = costs.layout();
  stage_prediction made{.slices = slices_of(stage, layout, all)};
  for (std::uint32_t chunk = 0; chunk < layout.chunks; ++chunk) {
    const auto at = layout.virtual_stage_of({stage, chunk});
    const auto seconds = costs.seconds(at, all[at]);
    made.forward_s += seconds.forward;
    made.backward_s += seconds.of(action_kind::backward);
    made.update_s += costs.update_s(all[at]);
    if (const double back = costs.edge_bytes(at, all[at].first); back > 0)
      made.sent_bytes[layout.slice_at(at - 1).stage] += steps.microbatches * back;
    if (const double on = costs.edge_bytes(at + 1, all[at].last); on > 0)
      made.sent_bytes[layout.slice_at(at + 1).stage] += steps.microbatches * on;
  }
  made.busy_s = steps.microbatches * (made.forward_s + made.backward_s) + made.update_s;
  made.memory = costs.memory(stage, made.slices);
  return made;
}

prediction prediction_of(const step_model& step, const planning& how, const cut_list& cuts,
                         const simulation& run) {
  const auto all = slices_between(cuts, step.costs.layers());
  prediction made{.microbatches = step.steps.microbatches, .cuts = cuts};
  double updates = 0, busy = 0;
  for (std::uint32_t s = 0; s < how.stages; ++s) {
    made.stages.push_back(predict_stage(s, step, all));
    updates = std::max(updates, made.stages.back().update_s);
    busy += made.stages.back().busy_s;
  }
  const double at_once = std::max<double>(1, how.cores / std::max(1U, how.threads_per_stage));
  made.step_s = std::max(run.makespan + updates, busy / std::min<double>(at_once, how.stages));
  made.bubble = std::max(0.0, 1 - busy / (made.step_s * how.stages));
  return made;
}

/// One slice a stage: exact. `cap` 0: none.
std::optional<cut_list> cuts_of_stages(const stage_costs& costs, double cap) {
  const auto memory = [&costs](std::size_t stage, layer_range slice) {
    return costs.capped_bytes(static_cast<std::uint32_t>(stage), std::span(&slice, 1));
  };
  return minimax_cuts(costs.layout().stages, costs.layers(),
                      [&](std::size_t stage, std::size_t first, std::size_t last) {
                        if (cap > 0 && memory(stage, {first, last}) > cap) return infinite;
                        return costs.slowness(static_cast<std::uint32_t>(stage), {first, last});
                      });
}

/// As small a largest memory as is found: exact with one slice a stage.
std::vector<cut_list> small_cuts(const stage_costs& costs) {
  const auto& layout = costs.layout();
  const auto memory = [&](std::uint32_t virtual_stage, layer_range slice) {
    std::vector<layer_range> slices(layout.chunks);
    const auto [stage, chunk] = layout.slice_at(virtual_stage);
    slices[chunk] = slice;
    return costs.capped_bytes(stage, slices);
  };
  if (layout.chunks > 1) return search_cuts({costs.layers(), layout, memory}, most_compared);
  const auto smallest = minimax_cuts(
      layout.stages, costs.layers(), [&](std::size_t stage, std::size_t first, std::size_t last) {
        return memory(static_cast<std::uint32_t>(stage), {first, last});
      });
  return smallest ? std::vector<cut_list>{*smallest} : std::vector<cut_list>();
}

/// Several slices a stage: the cuts to compare, all within the cap.
std::vector<cut_list> cuts_of_slices(const stage_costs& costs, double cap) {
  slicing of{costs.layers(), costs.layout(),
             [&costs](std::uint32_t virtual_stage, layer_range slice) {
               const auto seconds = costs.seconds(virtual_stage, slice);
               return seconds.forward + seconds.of(action_kind::backward);
             }};
  if (cap > 0)
    of.fits = [&costs, cap](std::uint32_t stage, std::span<const layer_range> slices) {
      return costs.capped_bytes(stage, slices) <= cap;
    };
  auto found = search_cuts(of, most_compared);
  if (!found.empty() || cap == 0) return found;
  found = small_cuts(costs);
  std::erase_if(found, [&](const auto& cuts) { return largest_memory(costs, cuts) > cap; });
  return found;
}

/// The one with the fastest predicted step; nothing: there are none.
result<std::optional<cut_list>> fastest_of(const std::vector<cut_list>& all, const step_model& step,
                                           const planning& how) {
  std::optional<cut_list> best;
  double least_s = infinite;
  for (const auto& cuts : all) {
    const auto run = play(step, how, cuts);
    if (!run) return tl::unexpected(run.error());
    const double step_s = prediction_of(step, how, cuts, *run).step_s;
    if (step_s >= least_s) continue;
    least_s = step_s;
    best = cuts;
  }
  return best;
}

/// What is said behind the least cap; empty: NCCL takes nothing of it.
std::string words_on_least(const planning& how) {
  if (!how.on_devices || how.nccl_bytes.empty()) return {};
  const double most = std::ranges::max(how.nccl_bytes);
  if (most <= 0) return {};
  return ", of which up to " + mebibytes(most) + " are an estimate of NCCL's buffers";
}

error no_cut_fits(const step_model& step, const planning& how) {
  const auto& [steps, costs] = step;
  double least = infinite;
  for (const auto& cuts : small_cuts(costs)) least = std::min(least, largest_memory(costs, cuts));
  const bool is_exact = costs.layout().chunks == 1;
  return {errc::bad_config, "no partition into " + std::to_string(costs.layout().stages) +
                                " stages with " + std::to_string(steps.microbatches) +
                                " micro-batches " + (is_exact ? "keeps" : "was found that keeps") +
                                " every stage within " + mebibytes(how.memory_cap_bytes) +
                                "; the least cap that " +
                                (is_exact ? "would do" : "was found to do") + " is " +
                                mebibytes(least) + words_on_least(how)};
}

}  // namespace

result<simulated_step> simulate_step(const cost_model& costs, const planning& how,
                                     std::uint32_t microbatches,
                                     const std::vector<std::size_t>& cuts) {
  auto step = model_step(costs, how, microbatches);
  if (!step) return tl::unexpected(step.error());
  if (auto sound = check_cuts(cuts, step->costs); !sound) return tl::unexpected(sound.error());
  auto run = play(*step, how, cuts);
  if (!run) return tl::unexpected(run.error());
  auto seconds = seconds_of(step->costs, cuts);
  return simulated_step{std::move(step->steps), std::move(seconds), std::move(*run)};
}

result<prediction> predict(const cost_model& costs, const planning& how, std::uint32_t microbatches,
                           const std::vector<std::size_t>& cuts) {
  const auto step = model_step(costs, how, microbatches);
  if (!step) return tl::unexpected(step.error());
  if (auto sound = check_cuts(cuts, step->costs); !sound) return tl::unexpected(sound.error());
  const auto run = play(*step, how, cuts);
  if (!run) return tl::unexpected(run.error());
  return prediction_of(*step, how, cuts, *run);
}

result<std::vector<std::size_t>> plan_cuts(const cost_model& costs, const planning& how,
                                           std::uint32_t microbatches) {
  const auto step = model_step(costs, how, microbatches);
  if (!step) return tl::unexpected(step.error());
  const auto& layout = step->costs.layout();
  if (auto fits = check_stages(costs.layers(), layout.stages, layout.chunks); !fits)
    return tl::unexpected(fits.error());
  const double cap = how.memory_cap_bytes;
  auto best = layout.chunks == 1 ? result<std::optional<cut_list>>(cuts_of_stages(step->costs, cap))
                                 : fastest_of(cuts_of_slices(step->costs, cap), *step, how);
  if (!best) return tl::unexpected(best.error());
  if (!*best) return tl::unexpected(no_cut_fits(*step, how));
  return std::move(**best);
}

std::vector<std::uint32_t> microbatches_to_try(const planning& how) {
  const std::int64_t planned = how.schedule.given ? how.schedule.given->microbatches : most_tried;
  const auto most = std::clamp<std::int64_t>(how.batch_size / 2, 1, std::min(planned, most_tried));
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
