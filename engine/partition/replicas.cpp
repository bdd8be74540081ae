#include "engine/partition/replicas.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <ranges>

#include "messages/base/format.hpp"

namespace troupe::engine {
namespace {

constexpr double mebibyte = 1 << 20;

/// At which a replica's gradients are summed where stages pass tensors by reference.
constexpr double addition_bytes_per_s = 5e9;

/// How much of each gradient's bytes a replica sends, and receives, as in a ring.
double share_sent(std::uint32_t replicas) {
  return 2.0 * (replicas - 1) / replicas;
}

/// Seconds of a core: to send, receive and add gradients.
double adding_s(const std::vector<layer_cost>& layers, const planning& how) {
  double bytes = 0;
  for (const auto& each : layers) bytes += static_cast<double>(each.parameter_bytes);
  const double rate = how.bytes_per_s > 0 ? how.bytes_per_s : addition_bytes_per_s;
  return share_sent(how.stages) * bytes / rate;
}

/// What the network still has to carry when the last weight gradient is there. They become final
/// from the last layer to the first, once the gradient of the input is computed.
double left_to_carry_s(const std::vector<layer_cost>& layers, const planning& how) {
  const auto& network = how.network;
  double computed = 0, carried = 0;
  for (const auto& layer : std::views::reverse(layers)) {
    computed += layer.weight_s;
    if (network.bytes_per_s > 0)
      carried = std::max(carried, computed) + share_sent(how.stages) *
                                                  static_cast<double>(layer.parameter_bytes) /
                                                  network.bytes_per_s;
  }
  return std::max(0.0, carried - computed) + 2 * network.latency_s;  // a part there, a sum back
}

}  // namespace

result<replica_prediction> predict_replicas(const cost_model& costs, const planning& how,
                                            std::uint32_t microbatches) {
  const auto replicas = std::max(1U, how.stages);
  if (microbatches < replicas)
    return fail(errc::bad_config, std::to_string(replicas) +
                                      " replicas need as many micro-batches, not " +
                                      std::to_string(microbatches));
  const auto own = (microbatches + replicas - 1) / replicas;  // of the one that has the most
  const double samples = static_cast<double>(how.batch_size) / microbatches;
  auto alone = how;
  alone.schedule = {};
  alone.stages = 1;
  alone.batch_size = static_cast<std::int64_t>(std::ceil(samples * own));
  const auto step = predict(costs, alone, own, {});
  if (!step) return tl::unexpected(step.error());
  const auto layers = costs.at(samples).layers;
  const double at_once =
      std::clamp<double>(how.cores / std::max(1U, how.threads_per_stage), 1, replicas);
  const double adding = replicas > 1 ? adding_s(layers, how) : 0;
  const double left = replicas > 1 ? left_to_carry_s(layers, how) : 0;
  replica_prediction made{.replicas = replicas, .microbatches = microbatches};
  made.sum_s = adding * replicas / at_once + left;
  made.step_s = step->step_s * replicas / at_once + made.sum_s;
  made.memory = step->stages.front().memory;
  return made;
}

result<replica_prediction> plan_replicas(const cost_model& costs, const planning& how,
                                         const std::vector<std::uint32_t>& candidates) {
  std::optional<replica_prediction> best;
  std::optional<error> refused;
  for (const auto microbatches : candidates) {
    auto made = predict_replicas(costs, how, microbatches);
    if (!made)
      refused = made.error();
    else if (!best || made->step_s < best->step_s)
      best = *made;
  }
  if (best) return *best;
  if (refused) return tl::unexpected(*refused);
  return fail(errc::bad_config, "there is no number of micro-batches to choose from");
}

std::vector<std::string> compare(const replica_prediction& replicas, const prediction& pipeline,
                                 const planning& how) {
  const bool wins = replicas.step_s < pipeline.step_s;
  const double gain =
      (wins ? pipeline.step_s / replicas.step_s : replicas.step_s / pipeline.step_s);
  std::vector<std::string> lines{
      format("%u replicas of one stage instead: %.3f s a step, %.1f ms of it to sum gradients, %u "
             "micro-batches; memory %.0f MiB each, or %.0f MiB of a GPU",
             replicas.replicas, replicas.step_s, 1e3 * replicas.sum_s, replicas.microbatches,
             replicas.memory.on_cpu / mebibyte, replicas.memory.on_device / mebibyte),
      format(wins ? "the replicas win: the pipeline's step takes %.1f%% longer"
                  : "the pipeline wins: the replicas' step takes %.1f%% longer",
             100 * (gain - 1))};
  const auto& memory = replicas.memory;
  const double capped = how.on_devices ? memory.on_device : memory.on_cpu;
  if (how.memory_cap_bytes > 0 && capped > how.memory_cap_bytes)
    lines.back() +=
        format("; but a replica does not keep within %.0f MiB", how.memory_cap_bytes / mebibyte);
  lines.push_back(format("to train on replicas: --replicas %u --stages 1 --micro-batches %u",
                         replicas.replicas, replicas.microbatches));
  return lines;
}

}  // namespace troupe::engine
