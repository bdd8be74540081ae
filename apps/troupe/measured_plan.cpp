#include "apps/troupe/measured_plan.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/model/recompute.hpp"
#include "engine/partition/partition.hpp"
#include "engine/partition/planner.hpp"
#include "engine/partition/prediction.hpp"
#include "engine/partition/profile_file.hpp"
#include "engine/partition/replicas.hpp"
#include "engine/partition/tables/layer_table.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::apps {
namespace {

using cut_list = std::vector<std::size_t>;

constexpr double giga = 1e9;
constexpr double bits_of_byte = 8;

std::vector<std::string> names_of(const engine::saved_profile& profile) {
  std::vector<std::string> names;
  for (const auto& layer : profile.sizes.front().layers) names.push_back(layer.name);
  return names;
}

engine::planning planning_of(const plan_request& request, const engine::saved_profile& profile) {
  const auto& asked = request.measured;
  return {.schedule = request.schedule,
          .stages = request.stages,
          .batch_size = asked.batch_size.value_or(profile.batch_size),
          .cores = asked.cores.value_or(profile.cores),
          .threads_per_stage = profile.threads_per_stage,
          .credits = profile.credits,
          .bytes_per_s = asked.link_gbytes ? *asked.link_gbytes * giga : profile.bytes_per_s,
          .network = {.bytes_per_s = asked.network_gbits * giga / bits_of_byte,
                      .latency_s = asked.network_ms / 1000},
          .optimizer_copies = profile.optimizer_copies,
          .memory_cap_bytes =
              static_cast<double>(std::max(asked.memory_mib, asked.device_memory_mib)) * (1 << 20),
          .on_devices = asked.device_memory_mib > 0,
          .sample_bytes = profile.sample_bytes};
}

/// Where the request says to cut; nothing: the planner is to find out.
result<std::optional<cut_list>> set_cuts(const plan_request& request,
                                         const engine::saved_profile& profile) {
  const auto& words = request.measured.partition;
  const std::string word = words.size() == 1 ? words.front() : "";
  if (word == "auto") return std::nullopt;
  if (request.measured.memory_mib > 0 || request.measured.device_memory_mib > 0)
    return fail(errc::bad_config,
                "--memory-mib and --device-memory-mib apply to --partition auto only");
  const auto some = [](cut_list cuts) { return std::optional(std::move(cuts)); };
  if (word != "even") return engine::parse_cuts(names_of(profile), words).map(some);
  const auto layout = engine::layout_of(request.schedule, request.stages);
  if (!layout) return tl::unexpected(layout.error());
  const auto& layers = profile.sizes.front().layers;
  if (auto fits = engine::check_stages(layers.size(), layout->stages, layout->chunks); !fits)
    return tl::unexpected(fits.error());
  std::vector<double> costs;
  for (const auto& layer : layers) costs.push_back(layer.macs);
  return engine::even_cuts(costs, layout->virtual_stages()).map(some);
}

result<std::vector<std::uint32_t>> numbers_of(const plan_request& request,
                                              const engine::planning& how) {
  if (request.micro_batches == 0) return engine::microbatches_to_try(how);
  if (request.micro_batches <= how.batch_size) return std::vector{request.micro_batches};
  return fail(errc::bad_config, std::to_string(request.micro_batches) +
                                    " micro-batches need as many samples, but a batch has " +
                                    std::to_string(how.batch_size) + " (--batch-size)");
}

/// "4 and 32"
std::string sizes_of(const engine::saved_profile& profile) {
  std::string text;
  for (const auto& size : profile.sizes)
    text += (text.empty() ? "" : " and ") + std::to_string(size.samples);
  return text;
}

std::vector<std::string> lines_of(const engine::saved_profile& profile, const engine::planning& how,
                                  const engine::prediction& made) {
  const auto names = names_of(profile);
  std::vector<std::string> lines{
      profile.model + ", " + std::to_string(how.batch_size) + " samples a step; its " +
      std::to_string(names.size()) + " layers were measured at " + sizes_of(profile) +
      " samples a micro-batch, with " + counted(how.threads_per_stage, "thread") + " a stage" +
      (profile.sizes.size() > 1 ? "" : "; another size is taken in proportion")};
  std::ranges::move(engine::to_lines(made, names), std::back_inserter(lines));
  std::string cuts;
  for (const auto cut : made.cuts) cuts += (cuts.empty() ? "" : ",") + names[cut];
  if (!cuts.empty()) lines.push_back("to train so: --partition " + cuts);
  return lines;
}

/// What the step spends in each layer; nothing where that is not asked for.
std::vector<std::string> lines_of_layers(const engine::cost_model& costs,
                                         const engine::planning& how,
                                         const engine::prediction& made,
                                         const plan_request& request,
                                         const engine::kernels::machine_rates& of_thread) {
  if (!request.measured.layers) return {};
  return engine::to_lines(engine::work_of(costs, how, made),
                          {of_thread.flops_per_s * how.threads_per_stage,
                           of_thread.memory_bytes_per_s * how.threads_per_stage});
}

/// Replicas beside the pipeline; nothing where there is one stage.
std::vector<std::string> lines_of_replicas(const engine::cost_model& costs,
                                           const engine::planning& how,
                                           const engine::prediction& pipeline,
                                           const std::vector<std::uint32_t>& numbers) {
  if (how.stages < 2) return {};
  const auto replicas = engine::plan_replicas(costs, how, numbers);
  if (replicas) return engine::compare(*replicas, pipeline, how);
  return {"not compared with replicas of one stage: " + replicas.error().text};
}

}  // namespace

result<predicted_plan> plan_measured(const plan_request& request) {
  const auto profile = engine::load_profile(request.measured.file);
  if (!profile) return tl::unexpected(profile.error());
  auto how = planning_of(request, *profile);
  auto recompute = engine::recomputed_layers(names_of(*profile), request.measured.recompute);
  if (!recompute) return tl::unexpected(recompute.error());
  how.recompute = std::move(*recompute);
  const auto numbers = numbers_of(request, how);
  if (!numbers) return tl::unexpected(numbers.error());
  const auto cuts = set_cuts(request, *profile);
  if (!cuts) return tl::unexpected(cuts.error());
  const auto costs = engine::cost_model::fit(profile->sizes);
  if (!costs) return tl::unexpected(costs.error());
  const auto made = engine::plan_microbatches(*costs, how, *numbers, *cuts ? &**cuts : nullptr);
  if (!made) return tl::unexpected(made.error());
  auto played = engine::simulate_step(*costs, how, made->microbatches, made->cuts);
  if (!played) return tl::unexpected(played.error());
  auto lines = lines_of(*profile, how, *made);
  std::ranges::move(lines_of_layers(*costs, how, *made, request, profile->rates),
                    std::back_inserter(lines));
  std::ranges::move(lines_of_replicas(*costs, how, *made, *numbers), std::back_inserter(lines));
  return predicted_plan{std::move(played->steps), std::move(played->costs), std::move(played->run),
                        std::move(lines)};
}

}  // namespace troupe::apps
