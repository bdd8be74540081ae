#include "cluster/config/config_tables.hpp"

#include <signal.h>

#include <algorithm>
#include <charconv>
#include <thread>
#include <utility>

#include "cluster/config/trainer_config.hpp"
#include "engine/device/device_choice.hpp"
#include "engine/step/stage_name.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {

bool opens_port(transport value) noexcept {
  return value == transport::tcp || value == transport::mixed;
}

placement_tables::placement_tables(const trainer_config& config)
    : pipeline(config.pipeline), cluster(config.cluster) {}

stage_tables::stage_tables(const trainer_config& config)
    : placement_tables(config),
      link(config.link),
      model(config.model),
      optimizer(config.optimizer),
      train(config.train) {}

double loss_scale_of(const model_config& model, const train_config& train) noexcept {
  return train.loss_scale.value_or(model.precision == engine::precision::fp16 ? 0 : 1);
}

result<checkpoint_period> period_of(const checkpoint_config& config) {
  const auto& text = config.every;
  if (text.empty()) return checkpoint_period{};
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, number);
  const std::string_view unit(stop, static_cast<std::size_t>(end - stop));
  const std::uint64_t seconds = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  constexpr std::uint64_t most = 1'000'000'000;  // of seconds too, which a clock counts in ns
  const bool is_known = unit.empty() || seconds > 0;
  if (status != std::errc() || !is_known || number == 0 ||
      number > most / std::max<std::uint64_t>(seconds, 1))
    return fail(errc::bad_config, '"' + text +
                                      "\" is no period; write a number of steps, or a time such as "
                                      "30s, 5m or 2h");
  if (unit.empty()) return checkpoint_period{.steps = number};
  return checkpoint_period{.time = std::chrono::seconds(number * seconds)};
}

result<int> signal_of(const checkpoint_config& config) {
  const auto& name = config.on_signal;
  if (name.empty()) return 0;
  if (name == "SIGUSR1" || name == "USR1") return SIGUSR1;
  if (name == "SIGUSR2" || name == "USR2") return SIGUSR2;
  return fail(errc::bad_config, '"' + name +
                                    "\" is no signal that asks for a checkpoint; take SIGUSR1 or "
                                    "SIGUSR2 (SIGTERM, SIGINT and SIGHUP end the run with one)");
}

std::filesystem::path state_file_of(const std::filesystem::path& weights) {
  auto file = weights;
  if (file.extension() == ".safetensors") file.replace_extension();
  return file += ".state.safetensors";
}

engine::schedule_choice schedule_of(const pipeline_config& config,
                                    const engine::schedule_registry& known) {
  return {config.schedule, config.chunks, config.plan, known};
}

result<engine::model_layout> layout_of(const pipeline_config& config,
                                       const engine::schedule_registry& known) {
  return engine::layout_of(schedule_of(config, known), config.stages);
}

std::uint32_t slices_of(const pipeline_config& config, const engine::schedule_registry& known) {
  const auto layout = layout_of(config, known);
  return layout ? layout->virtual_stages() : config.stages;
}

unsigned cores_here() noexcept {
  return std::thread::hardware_concurrency();
}

int threads_per_stage(const pipeline_config& config, unsigned cores) noexcept {
  if (config.threads_per_stage > 0) return config.threads_per_stage;
  return std::max(1, static_cast<int>(cores / std::max(1U, config.stages * config.replicas)));
}

std::uint32_t logical_replicas_of(const pipeline_config& pipeline,
                                  const train_config& train) noexcept {
  return train.logical_replicas > 0 ? train.logical_replicas : pipeline.replicas;
}

bool is_norm_synced(const pipeline_config& pipeline, const train_config& train) noexcept {
  return train.batch_norm == norm_scope::sync && logical_replicas_of(pipeline, train) > 1;
}

std::uint32_t state_shares_of(const pipeline_config& config) noexcept {
  return config.zero > 0 ? config.replicas : 1;
}

std::vector<std::string> stage_names_of(const pipeline_config& config) {
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < config.stages * config.replicas; ++i)
    names.push_back(engine::stage_name(i, config.stages, config.replicas));
  return names;
}

const std::string& device_of_stage(const pipeline_config& config, std::size_t place) {
  return config.devices[place % config.devices.size()];
}

bool is_gpu(std::string_view device) {
  const auto choice = engine::parse_device(device);
  return choice && choice->what == engine::device_choice::kind::cuda;
}

bool are_stages_on_gpus(const placement_tables& config) {
  const auto& nodes = config.cluster.nodes;
  if (nodes.empty()) return std::ranges::all_of(config.pipeline.devices, is_gpu);
  return std::ranges::all_of(nodes, [&](const node_entry& node) {
    return devices_of(node, config.pipeline) != node_devices::none;
  });
}

node_devices devices_of(const node_entry& node, const pipeline_config& pipeline) {
  // Where there are nodes the pipeline has no list.
  const auto& device = node.device.empty() ? pipeline.devices.front() : node.device;
  if (is_gpu(device)) return node_devices::shared;
  return device == "auto" && node.device_memory_mib > 0 ? node_devices::own : node_devices::none;
}

std::vector<node_room> rooms_of(const placement_tables& config, unsigned cores) {
  std::vector<node_room> rooms;
  for (const auto& node : config.cluster.nodes) {
    node_room room{.name = node.name, .cores = node.cores > 0 ? node.cores : std::max(1U, cores)};
    if (node.memory_mib > 0) room.memory_bytes = static_cast<double>(node.memory_mib) * (1 << 20);
    room.devices = devices_of(node, config.pipeline);
    if (node.device_memory_mib > 0)
      room.device_bytes = static_cast<double>(node.device_memory_mib) * (1 << 20);
    for (const auto& number : node.stages)
      room.stages.push_back(static_cast<std::uint32_t>(std::stoul(number)));
    for (const auto& number : node.replicas)
      room.replicas.push_back(static_cast<std::uint32_t>(std::stoul(number)));
    rooms.push_back(std::move(room));
  }
  return rooms;
}

result<std::vector<std::size_t>> node_of_stages(const placement_tables& config, unsigned cores) {
  return place_replicas(config.pipeline.stages, config.pipeline.replicas, rooms_of(config, cores),
                        config.cluster.stage_needs)
      .map_error([](placement_fault why) {
        return error{errc::bad_config, std::move(why.text)};
      });
}

result<std::optional<std::size_t>> stage_of_data(const placement_tables& config,
                                                 const data_config& data) {
  const auto& wanted = data.node;
  if (wanted.empty()) return std::nullopt;
  std::vector<std::string> names;  // of each stage's node
  const auto places = config.cluster.nodes.empty()
                          ? result<std::vector<std::size_t>>(std::vector<std::size_t>())
                          : node_of_stages(config);
  if (!places) return tl::unexpected(places.error());
  for (std::uint32_t stage = 0; stage < config.pipeline.stages; ++stage)
    names.push_back(places->empty() ? "stage-" + std::to_string(stage)
                                    : config.cluster.nodes[places->at(stage)].name);
  const auto found = std::ranges::find(names, wanted);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  std::vector<std::string_view> known(names.begin(), names.end());
  known.erase(std::ranges::unique(known).begin(), known.end());
  return fail(errc::bad_config, unknown_value(wanted, known));
}

std::vector<int> threads_of_stages(const placement_tables& config, unsigned cores) {
  const auto& nodes = config.cluster.nodes;
  const auto places = node_of_stages(config, cores);
  if (nodes.empty() || !places)
    return std::vector<int>(config.pipeline.stages * config.pipeline.replicas,
                            threads_per_stage(config.pipeline, cores));
  std::vector<int> threads;
  for (const auto place : *places) {
    const auto& node = nodes[place];
    const auto here = static_cast<std::size_t>(std::ranges::count(*places, place));
    const int wanted = node.threads > 0 ? node.threads : config.pipeline.threads_per_stage;
    threads.push_back(threads_on(node.cores > 0 ? node.cores : cores, here, wanted));
  }
  return threads;
}

std::vector<thread_load> thread_loads_of(const placement_tables& config, unsigned cores) {
  const auto threads = threads_of_stages(config, cores);
  const auto& nodes = config.cluster.nodes;
  const auto places = node_of_stages(config, cores);  // an error: there are no nodes
  const std::string of_pipeline = "threads_per_stage in [pipeline] (--threads-per-stage)";
  const bool is_given = config.pipeline.threads_per_stage > 0;
  std::vector<thread_load> loads(std::max<std::size_t>(1, nodes.size()));
  for (std::size_t i = 0; i < nodes.size(); ++i)
    loads[i].setting = nodes[i].threads > 0 ? "threads in its [[node]]"
                       : is_given           ? of_pipeline
                                            : "cores in its [[node]], from which they follow";
  if (nodes.empty()) loads.front().setting = of_pipeline;
  for (std::size_t stage = 0; stage < threads.size(); ++stage) {
    auto& load = loads[places ? places->at(stage) : 0];
    load.all += threads[stage];
    load.most = std::max(load.most, threads[stage]);
  }
  return loads;
}

std::vector<device_seat> seats_of_stages(const placement_tables& config, unsigned cores) {
  const auto& nodes = config.cluster.nodes;
  const auto places = node_of_stages(config, cores);  // an error: there are no nodes
  std::vector<device_seat> seats(config.pipeline.stages * config.pipeline.replicas);
  std::map<std::string, std::uint32_t> taken;  // by machine
  std::vector<std::string> machines(seats.size());
  for (std::size_t i = 0; i < seats.size(); ++i) {
    seats[i].device = device_of_stage(config.pipeline, i);
    if (places) {
      const auto& node = nodes[places->at(i)];
      if (!node.device.empty()) seats[i].device = node.device;
      if (is_over_hosts(config.cluster.launch)) machines[i] = node.host;
    }
    if (seats[i].device == "auto") seats[i].seat = taken[machines[i]]++;
  }
  for (std::size_t i = 0; i < seats.size(); ++i)
    if (seats[i].device == "auto") seats[i].seats = taken[machines[i]];
  return seats;
}

double learning_rate(const optimizer_config& config, std::uint64_t step,
                     std::uint64_t total_steps) noexcept {
  const auto lr = config.options.find("lr");
  const double full = lr == config.options.end() ? 0 : lr->second;
  return full * optimizers::rate_share(config.schedule, step, total_steps);
}

}  // namespace troupe::cluster
