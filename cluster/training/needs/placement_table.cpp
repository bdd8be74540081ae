#include "cluster/training/needs/placement_table.hpp"

#include <algorithm>
#include <fstream>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "actors/pipeline/stage_needs.hpp"
#include "cluster/training/data_source.hpp"
#include "cluster/training/needs/card_room_core.hpp"
#include "cluster/training/needs/columns.hpp"
#include "cluster/training/needs/memory_places.hpp"
#include "cluster/training/needs/placement_words.hpp"
#include "cluster/training/needs/predicted_memory.hpp"
#include "cluster/training/prepared_run.hpp"
#include "cluster/training/restarts/keeper_process.hpp"
#include "engine/device/device_choice.hpp"
#include "engine/device/open_device.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

using actors::in_mebi;

std::string layers_of(const prepared_run& run, const engine::layer_range& range) {
  const auto& [first, last] = range;
  const auto count = counted(last - first, "layer");
  return run.layer_names[first] + " .. " + run.layer_names[last - 1] + " (" + count + ")";
}

/// For what follows from data that are not here.
constexpr const char* not_known = "unknown";

/// The stage's layers: of all its chunks.
std::string layers_of_stage(const prepared_run& run, const engine::model_layout& layout,
                            std::uint32_t stage) {
  if (run.ranges.empty()) return not_known;
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

/// Of what runs on this machine: stages, and what keeps versions of those that lend none. What a
/// program itself takes is in neither amount.
result<void> check_memory_here(const cluster_config& cluster, const predicted_memory& memory,
                               const std::vector<stage_place>& places) {
  const bool has_keeper = memory.keeper > 0;
  if (cluster.launch != launch_way::local)
    return has_keeper
               ? actors::check_room("trainer and keeper are together predicted to take",
                                    memory.trainer + memory.keeper, engine::read_free_memory())
               : result<void>();
  if (std::ranges::any_of(places, &stage_place::on_gpu)) {
    std::vector<std::string> devices;
    for (const auto& place : places) devices.push_back(place.device);
    if (auto fits = check_card_room(devices, memory.stages, engine::find_cards()); !fits)
      return fits;
  }
  double all = memory.keeper - memory.mapped;
  for (std::size_t i = 0; i < memory.stages.size(); ++i)
    all += memory.stages[i].on_host(places[i].on_gpu);
  const bool is_alone = memory.stages.size() == 1;
  const std::string who =
      (is_alone ? "stage-0" : "stage-0 to stage-" + std::to_string(memory.stages.size() - 1)) +
      (has_keeper ? " and the keeper" : "") + (is_alone && !has_keeper ? " is" : " are together");
  return actors::check_room(who + " predicted to take", all, engine::read_free_memory());
}

/// What a stage computes on: on another machine "auto" is only known there.
std::string device_of(const cluster_config& cluster, const device_seat& seat) {
  if (seat.device != "auto") return seat.device;
  if (is_over_hosts(cluster.launch)) return "auto, found out there";
  return engine::assign_device(engine::find_usable_cards(), seat.seat, seat.seats).device;
}

/// Of each stage, replica by replica.
std::vector<stage_place> places_of(const placement_tables& config) {
  const auto nodes = node_of_stages(config);
  std::vector<stage_place> all;
  for (const auto& seat : seats_of_stages(config)) {
    stage_place place{device_of(config.cluster, seat)};
    place.on_gpu = is_gpu(place.device);
    if (seat.device == "auto" && is_over_hosts(config.cluster.launch) && nodes)
      place.on_gpu = devices_of(config.cluster.nodes[nodes->at(all.size())], config.pipeline) !=
                     node_devices::none;
    all.push_back(std::move(place));
  }
  return all;
}

/// Whether each stage computes on the same in all replicas.
bool are_replicas_alike(const std::vector<stage_place>& on, std::size_t stages) {
  for (std::size_t i = stages; i < on.size(); ++i)
    if (on[i].device != on[i % stages].device) return false;
  return true;
}

/// A line for each stage, of one replica alone where there are no nodes and replicas are alike.
/// `memory`: nothing where it cannot be predicted.
std::vector<table_row> rows_of(const stage_tables& config, const prepared_run& run,
                               const engine::model_layout& layout,
                               const std::optional<predicted_memory>& memory,
                               const std::vector<stage_place>& on) {
  const auto amount = [&memory](auto of) {
    return memory ? in_mebi(std::invoke(of, *memory)) : std::string(not_known);
  };
  const auto threads = threads_of_stages(config);
  const auto places = node_of_stages(config);
  const auto stages = config.pipeline.stages;
  const auto shown = places || !are_replicas_alike(on, stages) ? on.size() : stages;
  std::vector<table_row> rows{
      {"stage", "layers", "node", "address", "device", "threads", "memory", "device memory"}};
  for (std::size_t i = 0; i < shown; ++i) {
    const auto stage = static_cast<std::uint32_t>(i % stages);
    const auto& place = on[i];
    const auto on_host = [&](const auto& all) { return all.stages[stage].on_host(place.on_gpu); };
    const auto on_device = [&](const auto& all) { return all.stages[stage].of_device(); };
    const auto replica = shown > stages ? " of replica " + std::to_string(i / stages) : "";
    table_row line{std::to_string(stage) + replica,
                   layers_of_stage(run, layout, stage),
                   "-",
                   "this machine",
                   place.device,
                   std::to_string(threads[i]),
                   amount(on_host),
                   place.on_gpu ? amount(on_device) : std::string("-")};
    if (config.cluster.launch == launch_way::none) line[3] = "joins " + config.link.listen;
    if (places) {
      const auto& node = config.cluster.nodes[(*places)[i]];
      line[2] = node.name;
      line[3] = address_of(config.cluster, node);
    }
    rows.push_back(std::move(line));
  }
  const auto add_here = [&](const char* name, double predicted_memory::*of) {
    rows.push_back({name, "-", "-", "this machine", "-", "-", amount(of), "-"});
  };
  add_here("trainer", &predicted_memory::trainer);
  if (outlives_trainer(config.train, config.pipeline))
    add_here("keeper", &predicted_memory::keeper);
  if (std::ranges::none_of(on, &stage_place::on_gpu))
    for (auto& each : rows) each.back().clear();
  return rows;
}

/// Where the stages would be, if memory counted for nothing, behind why they cannot be placed by
/// it.
result<std::pair<placed_run, std::optional<error>>> placed_or_refused(const planned_run& of) {
  auto memory = predict_memory(of);
  if (!memory) return tl::unexpected(memory.error());
  std::pair<placed_run, std::optional<error>> out{{of.config, std::move(*memory)}, {}};
  if (!names_memory(of.config.cluster)) return out;
  auto placed = place_by_memory(of);
  if (placed)
    out.first = std::move(*placed);
  else
    out.second = placed.error();
  return out;
}

/// Of a run whose data are on a node, and not here.
result<checked_run> table_without_data(const application& program, const trainer_config& config,
                                       const std::string& devices, const error& why) {
  const auto run = prepare_without_data(program, config);
  if (!run) return tl::unexpected(run.error());
  const auto layout = layout_of(config.pipeline, program.info.known.schedules);
  if (!layout) return tl::unexpected(layout.error());
  const auto rows = rows_of(config, *run, *layout, std::nullopt, places_of(config));
  return checked_run{.table = in_columns(rows) + words_on_thread_loads(config) +
                              words_on_run(config, config.data, devices) +
                              words_on_missing_data(config.data, *run, why)};
}

bool is_of_missing_data(const error& why) {
  return why.code == errc::bad_data || why.code == errc::io_failed;
}

}  // namespace

result<checked_run> placement_table(const application& program, const trainer_config& config) {
  const auto devices = words_on_devices(config);  // before a layer runs: see engine::open_device
  // Where a node is to read the data, this machine may lack them.
  const auto data = open_data_here(program, config);
  if (!data && !config.data.node.empty() && is_of_missing_data(data.error()))
    return table_without_data(program, config, devices, data.error());
  if (!data) return tl::unexpected(data.error());
  const auto run = prepare(program, config, *data);
  if (!run) return tl::unexpected(run.error());
  const auto layout = layout_of(config.pipeline, program.info.known.schedules);
  if (!layout) return tl::unexpected(layout.error());
  const double program_bytes = resident_bytes();  // before layers are measured
  const auto placed = placed_or_refused({program, config, *run});
  if (!placed) return tl::unexpected(placed.error());
  const auto& [where, refused] = *placed;
  const auto on = places_of(where.config);
  const auto rows = rows_of(where.config, *run, *layout, where.memory, on);
  auto out = in_columns(rows) +
             explanation_of_memory(program_bytes, config.train, config.pipeline,
                                   std::ranges::any_of(on, &stage_place::on_gpu)) +
             words_on_nodes(where.config, where.memory) + words_on_thread_loads(where.config) +
             words_on_versions(where.memory, on) + words_on_nccl_buffers(where.memory, on) +
             words_on_run(config, config.data, devices);
  checked_run checked{.table = std::move(out), .refused = refused};
  if (auto fits = check_memory_here(config.cluster, where.memory, on); !fits && !refused)
    checked.refused = fits.error();
  return checked;
}

}  // namespace troupe::cluster
