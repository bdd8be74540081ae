#include "cluster/training/needs/device_peaks_core.hpp"

#include <algorithm>
#include <utility>

#include "cluster/training/needs/columns.hpp"
#include "messages/base/format.hpp"

namespace troupe::cluster {
namespace {

/// One of each count, in the order of their first stages.
std::vector<device_peak> counts_of(const std::vector<device_peak>& stages) {
  std::vector<device_peak> counts;
  for (const auto& each : stages) {
    if (each.measured_bytes <= 0) continue;
    const auto found = std::ranges::find(counts, each.memory, &device_peak::memory);
    if (found == counts.end()) {
      counts.push_back(each);
      continue;
    }
    found->stage += ", " + each.stage;
    found->measured_bytes = std::max(found->measured_bytes, each.measured_bytes);
    found->predicted_bytes += each.predicted_bytes;
  }
  return counts;
}

std::string mebi_text(double bytes) {
  return format("%.0f MiB", bytes / (1 << 20));
}

}  // namespace

std::string device_peak_table(const std::vector<device_peak>& stages) {
  const auto counts = counts_of(stages);
  if (counts.empty()) return "";
  const bool is_predicted =
      std::ranges::all_of(counts, [](const device_peak& each) { return each.predicted_bytes > 0; });
  std::vector<table_row> rows{{"stage", "peak device memory"}};
  if (is_predicted) rows.front().insert(rows.front().end(), {"predicted", "off by"});
  for (const auto& each : counts) {
    table_row row{each.stage, mebi_text(each.measured_bytes)};
    if (is_predicted)
      row.insert(row.end(),
                 {mebi_text(each.predicted_bytes),
                  format("%+.0f%%", 100 * (each.measured_bytes / each.predicted_bytes - 1))});
    rows.push_back(std::move(row));
  }
  return in_columns(rows);
}

}  // namespace troupe::cluster
