#include "cluster/training/needs/placement_table.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "actors/pipeline/stage_needs.hpp"
#include "cluster/training/data_source.hpp"
#include "cluster/training/needs/predicted_memory.hpp"
#include "cluster/training/prepared_run.hpp"
#include "engine/schedule/generators.hpp"

namespace troupe::cluster {
namespace {

using row = std::array<std::string, 6>;

using actors::in_mebi;

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

/// What the program itself has in this process now; 0: the system does not say.
double resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) * 1024;
  return 0;
}

std::string explanation(double program_bytes) {
  return "memory: the predicted peak of a process beside the program itself, which with its data "
         "has " +
         in_mebi(program_bytes) +
         " in this one.\n"
         "  A stage: parameters, gradients (the sum and a micro-batch's), the optimizer's state, "
         "activations of\n"
         "  the micro-batches in flight (measured here by one forward of each layer), what waits "
         "on "
         "its edges,\n"
         "  and the largest layer, which it draws; the trainer: two batches, and no weights.\n";
}

/// Of stages that run on this machine; what a program itself takes is in neither amount.
result<void> check_memory_here(const trainer_config& config, const predicted_memory& memory) {
  if (config.cluster.launch != launch_way::local) return {};
  double all = 0;
  for (const auto bytes : memory.stages) all += bytes;
  const std::string who =
      memory.stages.size() == 1
          ? "stage-0 is"
          : "stage-0 to stage-" + std::to_string(memory.stages.size() - 1) + " are together";
  return actors::check_room(who + " predicted to take", all, engine::read_free_memory());
}

std::string in_columns(const std::vector<row>& rows) {
  std::array<std::size_t, 6> widths{};
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

result<checked_run> placement_table(const application& program, const trainer_config& config) {
  // Where a node is to read the data, this machine may lack them.
  const auto data = open_data_here(program, config);
  if (!data && config.data.node.empty()) return tl::unexpected(data.error());
  if (!data)
    return fail(data.error().code, data.error().text + "; node " + config.data.node +
                                       " is to read them, but the layers' sizes follow from the "
                                       "data, so that no table can be made where they are not");
  const auto run = prepare(program, config, *data);
  if (!run) return tl::unexpected(run.error());
  const auto layout = engine::layout_of(schedule_of(config.pipeline, program.info.known.schedules),
                                        config.pipeline.stages);
  if (!layout) return tl::unexpected(layout.error());
  const auto cores = std::thread::hardware_concurrency();
  const auto threads = threads_of_stages(config, cores);
  const auto places = node_of_stages(config, cores);
  const double program_bytes = resident_bytes();  // before layers are measured
  const auto memory = predict_memory(program, config, *run);
  if (!memory) return tl::unexpected(memory.error());
  std::vector<row> rows{{"stage", "layers", "node", "address", "threads", "memory"}};
  // Where there are no nodes, replicas are alike.
  const auto shown = places ? places->size() : config.pipeline.stages;
  for (std::size_t i = 0; i < shown; ++i) {
    const auto stage = static_cast<std::uint32_t>(i % config.pipeline.stages);
    const auto replica = shown > config.pipeline.stages
                             ? " of replica " + std::to_string(i / config.pipeline.stages)
                             : std::string();
    row line{
        std::to_string(stage) + replica, layers_of_stage(*run, *layout, stage), "-", "this machine",
        std::to_string(threads[i]),      in_mebi(memory->stages[stage])};
    if (config.cluster.launch == launch_way::none) line[3] = "joins " + config.link.listen;
    if (places) {
      const auto& node = config.cluster.nodes[(*places)[i]];
      line[2] = node.name;
      line[3] = address_of(config.cluster, node);
    }
    rows.push_back(std::move(line));
  }
  rows.push_back({"trainer", "-", "-", "this machine", "-", in_mebi(memory->trainer)});
  auto out = in_columns(rows) + explanation(program_bytes);
  if (const auto logical = logical_replicas_of(config); logical > 1) {
    const auto replicas = config.pipeline.replicas;
    out += std::to_string(replicas) + (replicas > 1 ? " replicas, each with" : " replica with") +
           " these stages" + (places ? "" : " on this machine") + "; a batch has " +
           std::to_string(logical) + " logical replicas, whose gradients " +
           (config.pipeline.reduce == reduce_order::fast ? "NCCL sums in its own order\n"
                                                         : "are summed in a fixed tree\n");
    if (is_norm_synced(config))
      out += "batch norm normalizes the micro-batches of all logical replicas together\n";
    if (state_shares_of(config.pipeline) > 1)
      out += "the replicas of a stage share out its optimizer's state (zero = 1)\n";
  }
  if (!config.data.node.empty()) out += "node " + config.data.node + " reads the data\n";
  checked_run checked{.table = std::move(out)};
  if (auto fits = check_memory_here(config, *memory); !fits) checked.refused = fits.error();
  return checked;
}

}  // namespace troupe::cluster
