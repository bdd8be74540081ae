#include "cluster/training/placement_table.hpp"

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "cluster/training/prepared_run.hpp"
#include "engine/schedule/generators.hpp"

namespace troupe::cluster {
namespace {

using row = std::array<std::string, 5>;

std::string layers_of(const prepared_run& run, const engine::layer_range& range) {
  const auto& [first, last] = range;
  const auto count = std::to_string(last - first) + (last - first == 1 ? " layer" : " layers");
  return run.layer_names[first] + " .. " + run.layer_names[last - 1] + " (" + count + ")";
}

/// The stage's layers: of all its chunks.
std::string layers_of_stage(const prepared_run& run, const engine::model_layout& layout,
                            std::uint32_t stage) {
  std::string text;
  for (std::uint32_t chunk = 0; chunk < layout.chunks; ++chunk)
    text += (text.empty() ? "" : "; ") +
            layers_of(run, run.ranges[layout.virtual_stage_of({stage, chunk})]);
  return text;
}

std::string address_of(const cluster_config& cluster, const node_entry& node) {
  if (!node.address.empty()) return node.address;
  if (!node.network.empty()) return node.network;
  if (cluster.launch == launch_way::local) return "this machine";
  return cluster.network.empty() ? node.host : node.host + ", " + cluster.network;
}

std::string in_columns(const std::vector<row>& rows) {
  std::array<std::size_t, 5> widths{};
  for (const auto& each : rows)
    for (std::size_t i = 0; i < each.size(); ++i) widths[i] = std::max(widths[i], each[i].size());
  std::string text;
  for (const auto& each : rows) {
    std::string line;
    for (std::size_t i = 0; i < each.size(); ++i)
      line += each[i] + std::string(widths[i] - each[i].size() + 2, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace

result<std::string> placement_table(const application& program, const trainer_config& config) {
  const auto run = prepare(program, config);
  if (!run) return tl::unexpected(run.error());
  const auto layout = engine::layout_of(schedule_of(config.pipeline, program.info.known.schedules),
                                        config.pipeline.stages);
  if (!layout) return tl::unexpected(layout.error());
  const auto cores = std::thread::hardware_concurrency();
  const auto threads = threads_of_stages(config, cores);
  const auto places = node_of_stages(config, cores);
  std::vector<row> rows{{"stage", "layers", "node", "address", "threads"}};
  for (std::uint32_t stage = 0; stage < config.pipeline.stages; ++stage) {
    row line{std::to_string(stage), layers_of_stage(*run, *layout, stage), "-", "this machine",
             std::to_string(threads[stage])};
    if (config.cluster.launch == launch_way::none) line[3] = "joins " + config.link.listen;
    if (places) {
      const auto& node = config.cluster.nodes[(*places)[stage]];
      line[2] = node.name;
      line[3] = address_of(config.cluster, node);
    }
    rows.push_back(std::move(line));
  }
  return in_columns(rows);
}

}  // namespace troupe::cluster
