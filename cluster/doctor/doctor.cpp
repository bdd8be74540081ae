#include "cluster/doctor/doctor.hpp"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "cluster/checkpoints/checkpoint_files.hpp"
#include "cluster/config/checks/checks.hpp"
#include "cluster/doctor/edge_plan_core.hpp"
#include "cluster/doctor/node_visit.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/launch/agents/wall_clock.hpp"
#include "cluster/launch/open_files.hpp"
#include "cluster/membership/agent_start.hpp"

namespace troupe::cluster::doctor {
namespace {

constexpr auto limits = actors::usual_deadlines;
constexpr std::uint64_t files_a_visit = 16;

/// A node, its agent and what its listener said.
struct visited {
  patient who;
  agent_host host;
  requests::facts asked;
  requests::listen listen;
  std::optional<requests::data> data;  // that it is to read
  std::unique_ptr<node_visit> visit;   // null: it was not reached
  edge_facts listener;                 // with an address where it listens
};

/// What is to be examined, and how the processes connect.
struct tour {
  agent_plan plan;
  std::string transport;
  std::vector<std::size_t> places;                         // of each stage, among `nodes`
  std::vector<visited> nodes;                              // the trainer's machine first
  std::vector<std::pair<std::size_t, std::size_t>> edges;  // of nodes, to be probed
};

std::string trainer_name(const cluster_config& cluster) {
  const bool is_taken =
      std::ranges::find(cluster.nodes, "trainer", &node_entry::name) != cluster.nodes.end();
  return is_taken ? "the trainer" : "trainer";
}

std::vector<std::string> stage_names(std::uint32_t stages) {
  std::vector<std::string> out;
  for (std::uint32_t i = 0; i < stages; ++i) out.push_back("stage-" + std::to_string(i));
  return out;
}

/// A run without nodes has its stages on the trainer's machine, or where others start them.
result<agent_plan> plan_of(const trainer_config& config) {
  if (!config.cluster.nodes.empty())
    return plan_agents(config, stage_names(config.pipeline.stages));
  auto link = process_link_of(config.link);
  if (!link) return tl::unexpected(link.error());
  return agent_plan{.link = std::move(*link), .listen = config.link.listen, .agents = {}};
}

std::filesystem::path folder_of(const std::filesystem::path& file) {
  const auto parent = file.parent_path();
  return parent.empty() ? std::filesystem::current_path() : std::filesystem::absolute(parent);
}

/// Those that are kept, and the one that is being written.
std::uint32_t kept_at_once(const checkpoint_config& kept) {
  return static_cast<std::uint32_t>(kept.keep) + 1;
}

std::vector<folder_facts> trainer_folders(const trainer_config& config, const run_needs& needs) {
  std::vector<folder_facts> out;
  const auto add = [&out](const std::filesystem::path& file, const char* purpose,
                          std::uint64_t bytes) {
    if (!file.empty())
      out.push_back({.path = folder_of(file).string(), .purpose = purpose, .needed_bytes = bytes});
  };
  add(config.train.save, "what is saved at the end (train.save)", needs.saved_bytes);
  add(config.observe.json, "a line for each step (observe.json)", 0);
  if (!config.cluster.logs.empty())
    out.push_back({.path = std::filesystem::absolute(config.cluster.logs).string(),
                   .purpose = "the lines of each node (cluster.logs)",
                   .may_be_made = true,
                   .takes_little = true});
  if (config.checkpoint.dir.empty()) return out;
  const bool has_all = config.checkpoint.storage == checkpoint_storage::shared;
  std::uint64_t bytes = 0;  // of one
  for (const auto* each : {&needs.slices.weights, &needs.slices.state})
    if (has_all) bytes = std::reduce(each->begin(), each->end(), bytes);
  out.push_back({.path = std::filesystem::absolute(config.checkpoint.dir).string(),
                 .purpose = has_all ? "checkpoints (checkpoint.dir)"
                                    : "manifests of checkpoints (checkpoint.dir)",
                 .needed_bytes = bytes,
                 .kept_at_once = kept_at_once(config.checkpoint),
                 .may_be_made = true});
  return out;
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
  const auto cores = std::thread::hardware_concurrency();
  const auto threads = threads_of_stages(config, cores);
  const auto seats = seats_of_stages(config, cores);
  if (config.cluster.launch == launch_way::none) return;
  const auto places = node_of_stages(config, cores);  // an error: there are no nodes
  for (std::uint32_t i = 0; i < threads.size(); ++i) {
    const auto stage = i % config.pipeline.stages;
    all.places.push_back(places ? (*places)[i] + 1 : 0);
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

/// Has the machine of the stage that is to read the data open them; where the trainer is to, the
/// data are open already. Of stages that others start nothing is known.
void ask_for_data(tour& all, const trainer_config& config, const data_of& data) {
  const auto stage = stage_of_data(config, config.data, std::thread::hardware_concurrency());
  if (!data || !stage || !*stage || all.places.empty()) return;
  all.nodes[all.places.at(**stage)].data = data(config);
}

tour prepare_tour(const trainer_config& config, agent_plan plan, const run_needs& needs,
                  bool has_stages) {
  tour all{.plan = std::move(plan), .transport = {}, .places = {}, .nodes = {}, .edges = {}};
  all.transport = name_of(transport_of(all.plan.link));
  visited trainer;
  trainer.who.name = trainer_name(config.cluster);
  trainer.who.starts_others_by_ssh = config.cluster.launch == launch_way::ssh;
  trainer.host.name = trainer.who.name;
  trainer.asked.folders = trainer_folders(config, needs);
  trainer.listen = {all.transport, all.plan.listen, ""};
  all.nodes.push_back(std::move(trainer));
  for (std::size_t i = 0; i < all.plan.agents.hosts.size(); ++i) {
    const auto& host = all.plan.agents.hosts[i];
    visited node;
    if (const auto why = all.plan.unreached.find(i); why != all.plan.unreached.end())
      node.who.lost = why->second.text;
    node.who.name = host.name;
    node.host = host;
    if (!host.working_folder.empty())
      node.asked.folders.push_back(
          {.path = host.working_folder.string(), .purpose = "its working folder"});
    node.listen = {all.transport, "", ""};
    // As a node does: see serve_as_node.
    if (opens_port(all.plan.link.transport) && !is_loopback(all.plan.listen))
      node.listen = {all.transport, host.listen, host_of(all.plan.listen)};
    all.nodes.push_back(std::move(node));
  }
  if (!has_stages) {
    place_processes_in(all, needs);
    note_what_links_take(all, config.cluster, needs.threads_of_processes.size());
    return all;
  }
  place_stages_in(all, config, needs);
  add_slice_folders(all, config.checkpoint, config.cluster, needs);
  add_shared_folder(all, config.checkpoint, config.cluster, needs);
  if (config.pipeline.stages_in == placement::processes)
    note_what_links_take(all, config.cluster,
                         std::uint64_t{config.pipeline.stages} * config.pipeline.replicas);
  return all;
}

template <class Action>
void for_each_at_once(std::vector<visited>& nodes, const Action& action) {
  std::vector<std::future<void>> under_way;
  for (auto& node : nodes)
    under_way.push_back(std::async(std::launch::async, [&node, &action] { action(node); }));
  for (auto& each : under_way) each.get();
}

/// Whether what a node lacks, which is a finding of its own, keeps its processes from listening.
bool lacks_listening(const host_facts& facts, const agent_plan& plan) {
  const bool has_no_socket = std::ranges::any_of(facts.folders, [](const folder_facts& each) {
    return each.purpose == sockets_purpose && !each.error.empty();
  });
  return !opens_port(plan.link.transport) && (has_no_socket || !facts.shared_error.empty());
}

/// Has a node open the data that it is to read.
void open_data_on(visited& node) {
  if (!node.data) return;
  auto& facts = *node.who.facts;
  facts.data_source = node.data->source;
  const auto said = node.visit->ask(*node.data, limits.build);
  const auto found =
      said.error.empty() ? decode_host(said.lines) : fail(errc::io_failed, said.error);
  facts.data_error = found ? found->data_error : facts.data_source + ": " + found.error().text;
}

/// Reaches a node, and has its facts.
void examine_node(visited& node, const agent_plan& plan, std::size_t examiners) {
  if (!node.who.lost.empty()) return;
  auto opened = node_visit::open(plan, node.host, examiners);
  if (!opened) {
    node.who.lost = with_remedy_of_start(opened.error().text);
    return;
  }
  node.visit = std::move(*opened);
  node.who.warnings = node.visit->warnings();
  const auto asked_at = wall_clock_ns();
  const auto said = node.visit->ask(node.asked, limits.examine);
  auto facts = said.error.empty() ? decode_host(said.lines) : fail(errc::io_failed, said.error);
  if (!facts) {
    node.who.lost = with_remedy_of_start(facts.error().text);
    return;
  }
  facts->asked_ns = asked_at;
  facts->answered_ns = wall_clock_ns();
  node.host.addresses = facts->addresses;
  node.who.facts = std::move(*facts);
  open_data_on(node);
}

/// Has a node whose facts are known listen.
void have_it_listen(visited& node, const agent_plan& plan) {
  if (!node.who.facts || lacks_listening(*node.who.facts, plan)) return;
  const auto listens = node.visit->begin(node.listen, limits.listen);
  const auto where =
      listens.error.empty() ? decode_edge(listens.lines) : fail(errc::io_failed, listens.error);
  if (where)
    node.listener = *where;
  else
    node.who.listening_error = where.error().text;
}

/// What one node's process finds on the way to another. `examiner`: that serves nothing else now.
edge_facts probe(visited& from, const visited& to, const requests::probe& what,
                 std::size_t examiner) {
  const auto said = from.visit->ask(what, limits.examine, examiner);
  auto facts = decode_edge(said.lines);
  edge_facts out = facts ? std::move(*facts) : edge_facts{};
  out.from = from.who.name;
  out.to = to.who.name;
  out.address = to.listener.address;
  out.port_range = to.listener.port_range;
  out.ours.by = what.transport;
  if (!said.error.empty() && out.ours.error.empty()) out.ours.error = said.error;
  return out;
}

/// Begins to find out about an edge, by its place, and puts it in that of what was known.
std::future<void> begin_probe(tour& all, std::size_t which, bool only_tries,
                              std::vector<edge_facts>& known) {
  return std::async(std::launch::async, [&all, &known, which, only_tries] {
    auto& from = all.nodes[all.edges[which].first];
    const auto& to = all.nodes[all.edges[which].second];
    known[which] = probe(from, to, {all.transport, to.listener.address, only_tries}, which);
  });
}

/// The machine of each node: where figures would disturb each other.
std::vector<std::string> machines_of(const std::vector<visited>& nodes) {
  std::vector<std::string> out;
  for (const auto& node : nodes) {
    const bool is_known = node.who.facts && !node.who.facts->machine.empty();
    out.push_back(is_known ? node.who.facts->machine : node.who.name);
  }
  return out;
}

/// Measures those of these edges of which no failure is known.
void measure_edges(tour& all, std::vector<std::size_t> which, std::vector<edge_facts>& known) {
  std::erase_if(which, [&known](std::size_t i) { return !known[i].ours.error.empty(); });
  std::vector<std::pair<std::size_t, std::size_t>> edges;
  for (const auto i : which) edges.push_back(all.edges[i]);
  for (const auto& round : rounds_to_measure(edges, machines_of(all.nodes))) {
    std::vector<std::future<void>> measured;
    for (const auto i : round) measured.push_back(begin_probe(all, which[i], false, known));
    for (auto& each : measured) each.get();
  }
}

/// First sees which edges work, all at once, for each that does not takes seconds to show it;
/// meanwhile those that do are measured.
std::vector<edge_facts> probe_edges(tour& all) {
  // What a node lacks is its own finding.
  std::erase_if(all.edges, [&all](const auto& edge) {
    const auto& to = all.nodes[edge.second];
    return !all.nodes[edge.first].who.facts || !to.who.facts || to.listener.address.empty();
  });
  std::vector<edge_facts> known(all.edges.size());
  std::vector<std::future<void>> tries;
  // Inside a machine there is no network that could let some pass.
  if (all.transport != name_of(messages::link_transport::shm))
    for (std::size_t i = 0; i < all.edges.size(); ++i)
      tries.push_back(begin_probe(all, i, true, known));
  const auto soon = std::chrono::steady_clock::now() + limits.edge_word;
  std::vector<std::size_t> ready, silent;
  for (std::size_t i = 0; i < all.edges.size(); ++i) {
    const bool waits = !tries.empty() && tries[i].wait_until(soon) != std::future_status::ready;
    (waits ? silent : ready).push_back(i);
  }
  measure_edges(all, std::move(ready), known);
  for (const auto i : silent) tries[i].get();
  measure_edges(all, std::move(silent), known);
  return known;
}

/// `otherwise`: what to do where the error does not say it.
finding of_plan(const char* topic, const error& why, const char* otherwise) {
  const auto [what, remedy] = split_remedy(why.text);
  return {severity::error, topic, "", what, remedy.empty() ? otherwise : remedy};
}

/// As the launcher does, once all agents have said their addresses.
void choose_networks(tour& all) {
  std::vector<agent_host*> hosts;
  std::vector<visited*> nodes;
  for (auto& node : all.nodes) {
    if (node.listen.peer.empty() || !node.who.facts) continue;
    hosts.push_back(&node.host);
    nodes.push_back(&node);
  }
  static_cast<void>(choose_listening(hosts, all.plan.agents));  // each edge says its address
  for (auto* const node : nodes) node->listen.wanted = node->host.listen;
}

/// Visits all nodes, and tries and measures the edges between them.
std::vector<edge_facts> visit_all(tour& all) {
  for_each_at_once(all.nodes, [&all](visited& node) {
    examine_node(node, all.plan, std::max<std::size_t>(all.edges.size(), 1));
  });
  choose_networks(all);
  for_each_at_once(all.nodes, [&all](visited& node) { have_it_listen(node, all.plan); });
  return probe_edges(all);
}

finding of_preparing(const error& why, const cluster_config& cluster, const data_config& data) {
  const auto trainer = trainer_name(cluster);
  const bool is_of_data = why.code == errc::bad_data || why.code == errc::io_failed;
  if (is_of_data && !data.node.empty())
    return {severity::warning, "memory", trainer,
            "what the stages need cannot be predicted on this machine: " + why.text,
            "node " + data.node +
                " reads the data; where this machine has them too, the need is predicted"};
  if (why.code == errc::bad_data)
    return {severity::error, "data", trainer, why.text,
            "put the data there on this machine, or name where they are ([data] source)"};
  return of_plan("settings", why, "change the settings that are named");
}

}  // namespace

examination examine(const trainer_config& config, const run_knowledge& program) {
  examination out;
  const auto needs = program.needs(config);
  if (!needs) out.others.push_back(of_preparing(needs.error(), config.cluster, config.data));
  auto plan = plan_of(config);
  if (!plan) {
    out.others.push_back(of_plan("settings", plan.error(), "change the settings that are named"));
    return out;
  }
  if (config.cluster.launch == launch_way::none) {
    out.others.push_back({severity::ok, "node", "",
                          "others start the stages (launch = \"none\"): their machines are not "
                          "examined, nor is it known before they join whether they have the same "
                          "secret",
                          ""});
    if (const auto who = who_may_join(config.link.listen); !who.empty())
      out.others.push_back({severity::ok, "node", "", who, ""});
  }
  const auto known = needs.value_or(run_needs{});
  auto placed = config;
  if (known.is_placed_by_memory) placed.cluster.stage_needs = known.predicted;
  auto all = prepare_tour(placed, std::move(*plan), known, program.has_stages);
  ask_for_data(all, placed, program.data);
  if (config.pipeline.stages_in == placement::processes)
    all.edges = edges_to_probe(all.nodes.size(), all.places,
                               program.has_stages ? config.pipeline.stages : all.places.size(),
                               known.wraps);
  const auto room = allow_open_files(own_files + files_a_visit * all.nodes.size());
  if (room) out.edges = visit_all(all);
  if (!room) {
    const auto [what, remedy] = split_remedy(room.error().text);
    out.others.push_back(
        {severity::error, "open files", trainer_name(config.cluster), what, remedy});
  }
  out.is_sealed = all.transport == name_of(messages::link_transport::tcp);
  if (needs && config.data.node.empty() && all.nodes.front().who.facts)
    all.nodes.front().who.facts->data_source = config.data.source;
  for_each_at_once(all.nodes, [](visited& node) { node.visit.reset(); });
  for (auto& node : all.nodes) out.nodes.push_back(std::move(node.who));
  return out;
}

}  // namespace troupe::cluster::doctor
