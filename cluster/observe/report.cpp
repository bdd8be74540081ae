#include "cluster/observe/report.hpp"

#include <algorithm>

namespace troupe::cluster {

std::optional<double> evaluation_report::value_of(std::string_view name) const {
  const auto found = std::ranges::find(metrics, name, &metric_report::name);
  return found == metrics.end() ? std::nullopt : std::optional(found->value);
}

double bubble_of(std::span<const stage_report> stages, double seconds) noexcept {
  if (stages.empty() || !(seconds > 0)) return 0;
  double busy_s = 0;
  for (const stage_report& stage : stages) busy_s += stage.busy_s;
  return std::clamp(1 - busy_s / (static_cast<double>(stages.size()) * seconds), 0.0, 1.0);
}

}  // namespace troupe::cluster
