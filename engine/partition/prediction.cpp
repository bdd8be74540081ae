#include "engine/partition/prediction.hpp"

#include "messages/base/format.hpp"

namespace troupe::engine {
namespace {

constexpr double mebi = 1 << 20;

/// "conv1 .. layer1.0, fc"
std::string layers_of(const stage_prediction& stage, const std::vector<std::string>& layer_names) {
  std::string text;
  for (const auto& [begin, end] : stage.slices) {
    const auto &first = layer_names.at(begin), &last = layer_names.at(end - 1);
    text += (text.empty() ? "" : ", ") + (end - begin == 1 ? first : first + " .. " + last);
  }
  return text;
}

/// "sends 1.5 MiB a step to stage-0, 0.5 MiB to stage-2"
std::string traffic_of(const stage_prediction& stage) {
  std::string text;
  for (const auto& [to, bytes] : stage.sent_bytes)
    text += format(text.empty() ? "sends %.1f MiB a step to stage-%u" : ", %.1f MiB to stage-%u",
                   bytes / mebi, to);
  return text.empty() ? "sends nothing" : text;
}

}  // namespace

std::vector<std::string> to_lines(const prediction& of,
                                  const std::vector<std::string>& layer_names) {
  std::vector<std::string> lines;
  lines.push_back(format("predicted: %.3f s a step, bubble %.1f%%, %zu stages, %u micro-batches",
                         of.step_s, 100 * of.bubble, of.stages.size(), of.microbatches));
  for (std::size_t i = 0; i < of.stages.size(); ++i) {
    const auto& stage = of.stages[i];
    lines.push_back("  stage-" + std::to_string(i) + "  " + layers_of(stage, layer_names) +
                    format(": forward %.1f ms, backward %.1f ms a micro-batch; memory %.0f MiB, or "
                           "%.0f MiB of a GPU",
                           1e3 * stage.forward_s, 1e3 * stage.backward_s,
                           stage.memory.on_cpu / mebi, stage.memory.of_device() / mebi) +
                    words_on_nccl(stage.memory.by_nccl) +
                    format(" and %.0f MiB beside it; ", stage.memory.beside_device / mebi) +
                    traffic_of(stage));
  }
  return lines;
}

std::string against_measured(const prediction& of, double measured_s, double measured_bubble) {
  return format(
      "predicted %.3f s a step and measured %.3f s (%+.0f%%); bubble predicted %.1f%%, "
      "measured %.1f%%",
      of.step_s, measured_s, 100 * (measured_s / of.step_s - 1), 100 * of.bubble,
      100 * measured_bubble);
}

}  // namespace troupe::engine
