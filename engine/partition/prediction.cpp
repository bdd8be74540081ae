#include "engine/partition/prediction.hpp"

#include <cstdio>

namespace troupe::engine {
namespace {

template <class... Values>
std::string format(const char* how, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, how, values...);
  return text;
}

constexpr double mebi = 1 << 20;

}  // namespace

std::vector<std::string> to_lines(const prediction& of,
                                  const std::vector<std::string>& layer_names) {
  std::vector<std::string> lines;
  lines.push_back(format("predicted: %.3f s a step, bubble %.1f%%, %zu stages, %u micro-batches",
                         of.step_s, 100 * of.bubble, of.stages.size(), of.microbatches));
  for (std::size_t i = 0; i < of.stages.size(); ++i) {
    const auto& stage = of.stages[i];
    const auto& first = layer_names.at(stage.first);
    const auto& last = layer_names.at(stage.last - 1);
    const auto layers = stage.last - stage.first == 1 ? first : first + " .. " + last;
    lines.push_back("  stage-" + std::to_string(i) + "  " + layers +
                    format(": forward %.1f ms, backward %.1f ms a micro-batch; memory %.0f MiB; "
                           "sends %.1f MiB a step",
                           1e3 * stage.forward_s, 1e3 * stage.backward_s, stage.memory_bytes / mebi,
                           stage.sent_bytes / mebi));
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
