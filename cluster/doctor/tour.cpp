#include "cluster/doctor/tour.hpp"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "cluster/checkpoints/checkpoint_files.hpp"
#include "cluster/doctor/edge_plan_core.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/launch/open_files.hpp"

namespace troupe::cluster::doctor {
namespace {

std::filesystem::path folder_of(const std::filesystem::path& file) {
  const auto parent = file.parent_path();
  return parent.empty() ? std::filesystem::current_path() : std::filesystem::absolute(parent);
}

/// Those that are kept, and the one that is being written.
std::uint32_t kept_at_once(const checkpoint_config& kept) {
  return static_cast<std::uint32_t>(kept.keep) + 1;
}

/// Of what the trainer writes beside checkpoints.
std::vector<folder_facts> trainer_folders(const train_config& train, const observe_config& observe,
                                          const cluster_config& cluster, const run_needs& needs) {
  std::vector<folder_facts> out;
  const auto add = [&out](const std::filesystem::path& file, const char* purpose,
                          std::uint64_t bytes) {
    if (!file.empty())
      out.push_back({.path = folder_of(file).string(), .purpose = purpose, .needed_bytes = bytes});
  };
  add(train.save, "what is saved at the end (train.save)", needs.saved_bytes);
  add(observe.json, "a line for each step (observe.json)", 0);
  if (!cluster.logs.empty())
    out.push_back({.path = std::filesystem::absolute(cluster.logs).string(),
                   .purpose = "the lines of each node (cluster.logs)",
                   .may_be_made = true,
                   .takes_little = true});
  return out;
}

/// What the trainer itself has of checkpoints.
void add_checkpoint_folder(visited& trainer, const checkpoint_config& kept,
                           const run_needs& needs) {
  if (kept.dir.empty()) return;
  const bool has_all = kept.storage == checkpoint_storage::shared;
  const auto& [weights, state] = needs.slices;
  auto bytes = std::reduce(weights.begin(), weights.end());  // of one
  for (const auto& each : state) bytes = std::reduce(each.begin(), each.end(), bytes);
  trainer.asked.folders.push_back({.path = std::filesystem::absolute(kept.dir).string(),
                                   .purpose = has_all ? "checkpoints (checkpoint.dir)"
                                                      : "manifests of checkpoints (checkpoint.dir)",
                                   .needed_bytes = has_all ? bytes : 0,
                                   .kept_at_once = kept_at_once(kept),
                                   .may_be_made = true});
}

/// Asks each node that has stages for the disk on which it is to keep slices.
void add_slice_folders(tour& all, const checkpoint_config& kept, const cluster_config& cluster,
                       const run_needs& needs) {
  if (kept.storage != checkpoint_storage::local || kept.dir.empty()) return;
  const auto bytes = slice_bytes_of_nodes(all.places, needs.slices, all.nodes.size());
  for (std::size_t i = 0; i < all.nodes.size(); ++i) {
    if (all.nodes[i].who.stages.empty()) continue;
    const auto& nodes = cluster.nodes;
    const auto node = std::ranges::find(nodes, all.nodes[i].who.name, &node_entry::name);
    const bool has_own = node != nodes.end() && !node->checkpoint_dir.empty();
    const auto folder =
        has_own ? std::filesystem::path(node->checkpoint_dir) : std::filesystem::absolute(kept.dir);
    all.nodes[i].asked.folders.push_back({.path = (folder / slices_folder).string(),
                                          .purpose = slices_purpose,
                                          .needed_bytes = bytes[i],
                                          .kept_at_once = kept_at_once(kept),
                                          .may_be_made = true});
  }
}

/// Where all hosts share the folder of checkpoints, each of them writes there.
void add_shared_folder(tour& all, const checkpoint_config& kept, const cluster_config& cluster,
                       const run_needs& needs) {
  if (kept.storage != checkpoint_storage::shared || kept.dir.empty()) return;
  if (!is_over_hosts(cluster.launch)) return;
  const auto bytes = own_slice_bytes_of_nodes(all.places, needs.slices, all.nodes.size());
  for (std::size_t i = 0; i < all.nodes.size(); ++i)
    if (!all.nodes[i].who.stages.empty())
      all.nodes[i].asked.folders.push_back({.path = std::filesystem::absolute(kept.dir).string(),
                                            .purpose = "what its stages write of checkpoints "
                                                       "(checkpoint.dir)",
                                            .needed_bytes = bytes[i],
                                            .may_be_made = true,
                                            .takes_little = true});
}

/// Open files, sockets and shared memory of the run's processes.
void note_what_links_take(tour& all, const cluster_config& cluster, std::uint64_t processes) {
  const bool is_inside = !opens_port(all.plan.link.transport);
  const bool has_inside_door = all.plan.link.transport == transport::mixed;
  for (auto& node : all.nodes) {
    node.who.needed_files = own_files + files_a_process * (processes + 1);
    node.asked.has_sockets = is_inside || has_inside_door;
    if (is_inside) node.who.shared_memory_processes = static_cast<int>(all.places.size()) + 1;
    if (has_inside_door)
      node.who.shared_memory_processes = std::max(1, static_cast<int>(node.who.stages.size()));
  }
  auto& trainer = all.nodes.front().who;
  const auto agents = all.plan.agents.hosts.size();
  const bool has_children = agents == 0 && cluster.launch != launch_way::none;
  trainer.raises_limits = true;
  trainer.needed_files = own_files + files_an_agent * agents +
                         (has_children ? files_a_child : files_a_process) * processes;
}

void place_stages_in(tour& all, const placement_tables& config, const run_needs& needs) {
  const auto threads = threads_of_stages(config);
  const auto seats = seats_of_stages(config);
  const bool are_joined = config.cluster.launch == launch_way::none;
  const auto places = node_of_stages(config);  // an error: there are no nodes
  for (std::uint32_t i = 0; i < threads.size(); ++i) {
    const auto stage = i % config.pipeline.stages;
    all.places.push_back(are_joined ? i + 1 : places ? (*places)[i] + 1 : 0);
    auto& who = all.nodes[all.places.back()].who;
    if (std::ranges::find(who.stages, stage) == who.stages.end()) who.stages.push_back(stage);
    who.threads += threads[i];
    const bool on_gpu = is_gpu(seats[i].device);
    const auto& bytes = on_gpu ? needs.slices.weights : needs.stage_bytes;
    who.what_is_needed = on_gpu ? "weights, before they go to the GPU" : needs.of_what;
    who.why_not_predicted = needs.why_not_predicted;
    if (stage < bytes.size()) who.needed_bytes += bytes[stage];
    if (stage < needs.predicted.size())
      who.predicted_bytes += static_cast<std::uint64_t>(needs.predicted[stage].on_host(on_gpu));
  }
}

/// Of a parameter server's run: all of its processes are the trainer's children.
void place_processes_in(tour& all, const run_needs& needs) {
  auto& who = all.nodes.front().who;
  for (const auto threads : needs.threads_of_processes) {
    all.places.push_back(0);
    ++who.server_processes;
    who.threads += threads;
  }
  who.what_is_needed = needs.of_what;
  who.needed_bytes = std::reduce(needs.stage_bytes.begin(), needs.stage_bytes.end());
}

/// The machine of the stage that is to read the data; null where the trainer is to, which has them
/// open already.
visited* reader_of_data(tour& all, const placement_tables& config, const data_config& data) {
  const auto stage = stage_of_data(config, data);
  if (!stage || !*stage || all.places.empty()) return nullptr;
  return &all.nodes[all.places.at(**stage)];
}

visited trainer_of(const cluster_config& cluster, const tour& all) {
  visited trainer;
  trainer.who.name = trainer_name(cluster);
  trainer.who.starts_others_by_ssh = cluster.launch == launch_way::ssh;
  trainer.host.name = trainer.who.name;
  trainer.listen = {all.transport, all.plan.listen, ""};
  return trainer;
}

visited node_with_agent(const tour& all, std::size_t place) {
  const auto& host = all.plan.agents.hosts[place];
  visited node;
  if (const auto why = all.plan.unreached.find(place); why != all.plan.unreached.end())
    node.who.lost = why->second.text;
  node.who.name = host.name;
  node.host = host;
  node.wanted = host.listen;
  if (!host.working_folder.empty())
    node.asked.folders.push_back(
        {.path = host.working_folder.string(), .purpose = "its working folder"});
  node.listen = {all.transport, "", ""};
  // As a node does: see serve_as_node.
  if (opens_port(all.plan.link.transport) && !is_loopback(all.plan.listen))
    node.listen = {all.transport, host.listen, host_of(all.plan.listen)};
  return node;
}

/// It knows itself where it listens.
visited node_that_joins(const std::string& name, const std::string& transport) {
  visited node;
  node.who.name = name;
  node.host.name = name;
  node.is_awaited = true;
  node.listen = {transport, "", ""};
  return node;
}

std::vector<visited> nodes_of(const placement_tables& config, const tour& all, bool has_stages) {
  std::vector<visited> out;
  out.push_back(trainer_of(config.cluster, all));
  for (std::size_t i = 0; i < all.plan.agents.hosts.size(); ++i)
    out.push_back(node_with_agent(all, i));
  if (!is_joined(config.cluster, has_stages)) return out;
  for (const auto& name : stage_names_of(config.pipeline))
    out.push_back(node_that_joins(name, all.transport));
  return out;
}

/// Of a run with stages: where they are, and what they and their checkpoints take there.
void put_stages_in(tour& all, const placement_tables& config, const checkpoint_config& kept,
                   const run_needs& needs) {
  place_stages_in(all, config, needs);
  add_slice_folders(all, kept, config.cluster, needs);
  add_shared_folder(all, kept, config.cluster, needs);
  if (config.pipeline.stages_in == placement::processes)
    note_what_links_take(all, config.cluster,
                         std::uint64_t{config.pipeline.stages} * config.pipeline.replicas);
}

}  // namespace

std::string trainer_name(const cluster_config& cluster) {
  const bool is_taken =
      std::ranges::find(cluster.nodes, "trainer", &node_entry::name) != cluster.nodes.end();
  return is_taken ? "the trainer" : "trainer";
}

result<agent_plan> plan_of(const launch_tables& config) {
  if (!config.cluster.nodes.empty()) return plan_agents(config, stage_names_of(config.pipeline));
  auto link = process_link_of(config.link);
  if (!link) return tl::unexpected(link.error());
  return agent_plan{.link = std::move(*link), .listen = config.link.listen, .agents = {}};
}

bool is_joined(const cluster_config& cluster, bool has_stages) noexcept {
  return has_stages && cluster.launch == launch_way::none;
}

std::size_t most_edges(const pipeline_config& pipeline, std::size_t nodes) {
  const std::size_t stages = pipeline.stages;
  const std::size_t replicas = pipeline.replicas;
  const auto pairs = replicas * stages + stages * replicas * (replicas - 1) / 2;
  return std::min(nodes * nodes, nodes + 2 * pairs);
}

tour prepare_tour(const trainer_config& config, agent_plan plan, const run_needs& needs,
                  const run_knowledge& program) {
  tour all{.plan = std::move(plan), .transport = {}, .places = {}, .nodes = {}, .edges = {}};
  all.transport = name_of(transport_of(all.plan.link));
  all.nodes = nodes_of(config, all, program.has_stages);
  auto& trainer = all.nodes.front();
  trainer.asked.folders = trainer_folders(config.train, config.observe, config.cluster, needs);
  add_checkpoint_folder(trainer, config.checkpoint, needs);
  if (program.has_stages) {
    put_stages_in(all, config, config.checkpoint, needs);
  } else {
    place_processes_in(all, needs);
    note_what_links_take(all, config.cluster, needs.threads_of_processes.size());
  }
  if (auto* const reader = reader_of_data(all, config, config.data); reader && program.data)
    reader->data = program.data(config);
  if (config.pipeline.stages_in == placement::processes)
    all.edges = edges_to_probe(all.nodes.size(), all.places,
                               program.has_stages ? config.pipeline.stages : all.places.size(),
                               needs.wraps);
  return all;
}

}  // namespace troupe::cluster::doctor
