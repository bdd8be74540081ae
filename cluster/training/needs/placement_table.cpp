#include "cluster/training/needs/placement_table.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "actors/pipeline/stage_needs.hpp"
#include "cluster/config/checks/thread_checks.hpp"
#include "cluster/membership/launch_choice.hpp"
#include "cluster/training/data_source.hpp"
#include "cluster/training/needs/card_room_core.hpp"
#include "cluster/training/needs/columns.hpp"
#include "cluster/training/needs/memory_places.hpp"
#include "cluster/training/needs/predicted_memory.hpp"
#include "cluster/training/prepared_run.hpp"
#include "engine/device/device_choice.hpp"
#include "engine/device/open_device.hpp"
#include "engine/schedule/generators.hpp"

namespace troupe::cluster {
namespace {

using actors::in_mebi;

std::string layers_of(const prepared_run& run, const engine::layer_range& range) {
  const auto& [first, last] = range;
  const auto count = std::to_string(last - first) + (last - first == 1 ? " layer" : " layers");
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

const char* const explanation_of_versions =
    "  With on_fault = recover also versions of its own and of another stage; the trainer keeps "
    "those of stages\n"
    "  that lend it their memory. On one machine they are the pages of the stage that they are of, "
    "which a process\n"
    "  shows only once it has read them.\n";

const char* const explanation_of_devices =
    "device memory: what of that a stage has on its GPU, beside what CUDA's own libraries take; "
    "its process\n"
    "  then has its weights before they are moved, and what waits on edges to other processes.\n";

/// What a stage computes on.
struct stage_place {
  std::string device;   // as it is shown
  bool on_gpu = false;  // as far as is known here
};

/// Of stages that run on this machine; what a program itself takes is in neither amount.
result<void> check_memory_here(const cluster_config& cluster, const predicted_memory& memory,
                               const std::vector<stage_place>& places) {
  if (cluster.launch != launch_way::local) return {};
  if (std::ranges::any_of(places, &stage_place::on_gpu)) {
    std::vector<std::string> devices;
    for (const auto& place : places) devices.push_back(place.device);
    if (auto fits = check_card_room(devices, memory.stages, engine::find_cards()); !fits)
      return fits;
  }
  double all = -memory.mapped;
  for (std::size_t i = 0; i < memory.stages.size(); ++i)
    all += memory.stages[i].on_host(places[i].on_gpu);
  const std::string who =
      memory.stages.size() == 1
          ? "stage-0 is"
          : "stage-0 to stage-" + std::to_string(memory.stages.size() - 1) + " are together";
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
  const auto cores = std::thread::hardware_concurrency();
  const auto nodes = node_of_stages(config, cores);
  std::vector<stage_place> all;
  for (const auto& seat : seats_of_stages(config, cores)) {
    stage_place place{device_of(config.cluster, seat)};
    place.on_gpu = is_gpu(place.device);
    if (seat.device == "auto" && is_over_hosts(config.cluster.launch) && nodes)
      place.on_gpu = devices_of(config.cluster.nodes[nodes->at(all.size())], config.pipeline) !=
                     node_devices::none;
    all.push_back(std::move(place));
  }
  return all;
}

/// What there is to say of GPUs here; empty: nothing.
std::string words_on_devices(const placement_tables& config) {
  if (is_over_hosts(config.cluster.launch)) return "";
  const auto seats = seats_of_stages(config, std::thread::hardware_concurrency());
  const auto found = std::ranges::find(seats, "auto", &device_seat::device);
  if (found == seats.end()) return "";
  const auto said =
      engine::assign_device(engine::find_usable_cards(), found->seat, found->seats).said;
  return said.empty() ? "" : said + "\n";
}

/// Whether each stage computes on the same in all replicas.
bool are_replicas_alike(const std::vector<stage_place>& on, std::size_t stages) {
  for (std::size_t i = stages; i < on.size(); ++i)
    if (on[i].device != on[i % stages].device) return false;
  return true;
}

/// A line for each stage, of one replica alone where there are no nodes and replicas are alike.
/// `memory`: nothing where it cannot be predicted.
std::vector<table_row> rows_of(const trainer_config& config, const prepared_run& run,
                               const engine::model_layout& layout,
                               const std::optional<predicted_memory>& memory,
                               const std::vector<stage_place>& on) {
  const auto amount = [&memory](auto of) {
    return memory ? in_mebi(of(*memory)) : std::string(not_known);
  };
  const auto cores = std::thread::hardware_concurrency();
  const auto threads = threads_of_stages(config, cores);
  const auto places = node_of_stages(config, cores);
  const auto stages = config.pipeline.stages;
  const auto shown = places || !are_replicas_alike(on, stages) ? on.size() : stages;
  std::vector<table_row> rows{
      {"stage", "layers", "node", "address", "device", "threads", "memory", "device memory"}};
  for (std::size_t i = 0; i < shown; ++i) {
    const auto stage = static_cast<std::uint32_t>(i % stages);
    const auto on_host = [&](const predicted_memory& all) {
      return all.stages[stage].on_host(on[i].on_gpu);
    };
    const auto on_device = [&](const predicted_memory& all) { return all.stages[stage].on_device; };
    const auto replica = shown > stages ? " of replica " + std::to_string(i / stages) : "";
    table_row line{std::to_string(stage) + replica,
                   layers_of_stage(run, layout, stage),
                   "-",
                   "this machine",
                   on[i].device,
                   std::to_string(threads[i]),
                   amount(on_host),
                   on[i].on_gpu ? amount(on_device) : std::string("-")};
    if (config.cluster.launch == launch_way::none) line[3] = "joins " + config.link.listen;
    if (places) {
      const auto& node = config.cluster.nodes[(*places)[i]];
      line[2] = node.name;
      line[3] = address_of(config.cluster, node);
    }
    rows.push_back(std::move(line));
  }
  rows.push_back({"trainer", "-", "-", "this machine", "-", "-",
                  amount([](const predicted_memory& all) { return all.trainer; }), "-"});
  if (std::ranges::none_of(on, &stage_place::on_gpu))
    for (auto& each : rows) each.back().clear();
  return rows;
}

/// What the stages of each node take of the memory that it says; empty: none says any.
std::string words_on_nodes(const placement_tables& config, const predicted_memory& memory) {
  const auto places = node_of_stages(config, std::thread::hardware_concurrency());
  std::string out;
  for (std::size_t n = 0; places && n < config.cluster.nodes.size(); ++n) {
    const auto& node = config.cluster.nodes[n];
    const auto devices = devices_of(node, config.pipeline);
    double bytes = 0, on_device = 0;
    for (std::size_t i = 0; i < places->size(); ++i) {
      if (places->at(i) != n) continue;
      const auto& need = memory.stages[i % memory.stages.size()];
      bytes += need.on_host(devices != node_devices::none);
      on_device = devices == node_devices::own ? std::max(on_device, need.on_device)
                                               : on_device + need.on_device;
    }
    if (node.memory_mib > 0)
      out += "node " + node.name + ": its stages take " + in_mebi(bytes) + " of " +
             std::to_string(node.memory_mib) + " MiB\n";
    if (node.device_memory_mib > 0)
      out += "node " + node.name + ": " +
             (devices == node_devices::own ? "a stage takes at most " : "its stages take ") +
             in_mebi(on_device) + " of a GPU's " + std::to_string(node.device_memory_mib) +
             " MiB\n";
  }
  return out;
}

/// Of which nodes, or of this machine, it is known that stages have more threads than cores; empty:
/// of none.
std::string words_on_thread_loads(const placement_tables& config) {
  const auto& nodes = config.cluster.nodes;
  const auto here = std::thread::hardware_concurrency();
  const auto launch = config.cluster.launch;
  const auto loads = thread_loads_of(config, here);
  std::string out;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const bool is_node = i < nodes.size();
    const auto cores = known_cores(is_node ? nodes[i] : node_entry{}, launch, here);
    const auto words = cores > 0 ? words_on_threads(loads[i], cores) : "";
    if (!words.empty())
      out +=
          (is_node ? "node " + nodes[i].name : std::string("this machine")) + ": " + words + "\n";
  }
  return out;
}

/// What is sent of each stage's versions to a keeper that shares no memory with it; empty: nothing.
std::string words_on_versions(const predicted_memory& memory, const std::vector<stage_place>& on) {
  std::string out;
  for (std::size_t stage = 0; stage < memory.sent.size(); ++stage) {
    const auto& sent = memory.sent[stage];
    if (!sent) continue;
    out += "stage " + std::to_string(stage) + ": each version travels to its second keeper as ";
    if (sent->is_update(on[stage].on_gpu))
      out += in_mebi(sent->update) + " of gradients and buffers, of which the keeper computes " +
             in_mebi(sent->state) + " of state\n";
    else
      out += in_mebi(sent->state) + " of state\n";
  }
  return out;
}

/// What replicas do with these stages; empty: there is one replica, logical ones counted.
std::string words_on_replicas(const trainer_config& config) {
  const auto logical = logical_replicas_of(config);
  if (logical <= 1) return "";
  const auto replicas = config.pipeline.replicas;
  const bool has_nodes = bool(node_of_stages(config, std::thread::hardware_concurrency()));
  auto out = std::to_string(replicas) + (replicas > 1 ? " replicas, each with" : " replica with") +
             " these stages" + (has_nodes ? "" : " on this machine") + "; a batch has " +
             std::to_string(logical) + " logical replicas, whose gradients " +
             (config.pipeline.reduce == reduce_order::fast ? "NCCL sums in its own order\n"
                                                           : "are summed in a fixed tree\n");
  if (is_norm_synced(config))
    out += "batch norm normalizes the micro-batches of all logical replicas together\n";
  if (state_shares_of(config.pipeline) > 1)
    out += "the replicas of a stage share out its optimizer's state (zero = 1)\n";
  return out;
}

/// Where the stages would be, if memory counted for nothing, behind why they cannot be placed by
/// it.
result<std::pair<placed_run, std::optional<error>>> placed_or_refused(const application& program,
                                                                      const trainer_config& config,
                                                                      const prepared_run& run) {
  auto memory = predict_memory(program, config, run);
  if (!memory) return tl::unexpected(memory.error());
  std::pair<placed_run, std::optional<error>> out{{config, std::move(*memory)}, {}};
  if (!names_memory(config.cluster)) return out;
  auto placed = place_by_memory(program, config, run);
  if (placed)
    out.first = std::move(*placed);
  else
    out.second = placed.error();
  return out;
}

/// What holds wherever the data are. `devices`: see words_on_devices.
std::string words_on_run(const trainer_config& config, const std::string& devices) {
  auto out = words_on_replicas(config) + devices;
  if (config.model.tf32)
    out +=
        "matrix products and convolutions of f32 on GPUs may use TF32, whose bits are not those of "
        "f32\n";
  if (config.cluster.launch == launch_way::none)
    if (const auto who = who_may_join(config.link.listen); !who.empty()) out += who + "\n";
  if (!config.data.node.empty()) out += "node " + config.data.node + " reads the data\n";
  return out;
}

/// What is not checked where the data are not. `why`: that they are not.
std::string words_on_missing_data(const trainer_config& config, const prepared_run& run,
                                  const error& why) {
  const auto& node = config.data.node;
  std::string out = "the data are not on this machine (" + why.text + "): node " + node +
                    " opens them when the run starts, and for `troupe doctor`\n"
                    "not checked without them: what stages and trainer need, how many steps there "
                    "are and whether each has samples enough, a checkpoint to go on from";
  if (run.layers.empty())
    return out +
           ", the model's layers and what names them\n"
           "with their number of classes in the file (classes in [model]) the layers are checked\n";
  if (run.ranges.empty())
    return out +
           ", where the model is cut\n"
           "with cuts in the file (cut in [pipeline]) the table shows the layers of each stage\n";
  return out + "\n";
}

/// Of a run whose data are on a node, and not here.
result<checked_run> table_without_data(const application& program, const trainer_config& config,
                                       const std::string& devices, const error& why) {
  const auto run = prepare_without_data(program, config);
  if (!run) return tl::unexpected(run.error());
  const auto layout = engine::layout_of(schedule_of(config.pipeline, program.info.known.schedules),
                                        config.pipeline.stages);
  if (!layout) return tl::unexpected(layout.error());
  const auto rows = rows_of(config, *run, *layout, std::nullopt, places_of(config));
  return checked_run{.table = in_columns(rows) + words_on_thread_loads(config) +
                              words_on_run(config, devices) +
                              words_on_missing_data(config, *run, why)};
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
  const auto layout = engine::layout_of(schedule_of(config.pipeline, program.info.known.schedules),
                                        config.pipeline.stages);
  if (!layout) return tl::unexpected(layout.error());
  const double program_bytes = resident_bytes();  // before layers are measured
  const auto placed = placed_or_refused(program, config, *run);
  if (!placed) return tl::unexpected(placed.error());
  const auto& [where, refused] = *placed;
  const auto on = places_of(where.config);
  const auto rows = rows_of(where.config, *run, *layout, where.memory, on);
  auto out = in_columns(rows) + explanation(program_bytes) +
             (config.train.on_fault == fault_policy::recover ? explanation_of_versions : "") +
             (std::ranges::any_of(on, &stage_place::on_gpu) ? explanation_of_devices : "") +
             words_on_nodes(where.config, where.memory) + words_on_thread_loads(where.config) +
             words_on_versions(where.memory, on) + words_on_run(config, devices);
  checked_run checked{.table = std::move(out), .refused = refused};
  if (auto fits = check_memory_here(config.cluster, where.memory, on); !fits && !refused)
    checked.refused = fits.error();
  return checked;
}

}  // namespace troupe::cluster
