#include "cluster/config/checks/cluster_checks.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cluster/config/checks/host_checks.hpp"
#include "cluster/config/words.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/hosts/placement_core.hpp"
#include "cluster/hosts/scheduler_nodes.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

namespace fs = std::filesystem;

// Where something about a node stands: "run.toml:12: node.host", or the node where it is left out.
std::string at_node(const draft& whole, std::size_t node, const std::string& key) {
  const auto* const set = whole.find("node[" + std::to_string(node) + "]." + key);
  if (set != nullptr) return set->where() + ": ";
  const auto* const name = whole.find("node[" + std::to_string(node) + "].name");
  return (name != nullptr ? name->place : "[[node]] " + std::to_string(node + 1)) + ": node." +
         key + ": ";
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.find_first_of("._-") != 0 &&
         name.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW"
             "XYZ0123456789._-") == std::string::npos;
}

// What a process of the run is called, in its lines and in orders to join.
bool is_process_name(std::string_view name) {
  if (name == "trainer") return true;
  for (const std::string_view kind : {"stage-", "understudy-", "shard-", "worker-"})
    if (name.starts_with(kind) && name.size() > kind.size() &&
        name.find_first_not_of("0123456789.", kind.size()) == name.npos)
      return true;
  return false;
}

// Why a node cannot have this name; empty: it can.
std::string wrong_name(const std::string& name) {
  constexpr std::size_t longest = 64;
  if (name.size() > longest)
    return "a name of " + std::to_string(name.size()) +
           " characters is too long; allowed: " + std::to_string(longest);
  if (!is_plain_name(name))
    return '"' + name +
           "\" is no name of a node; use letters, digits, '.', '_' and '-', the first a letter or "
           "digit";
  if (is_process_name(name))
    return '"' + name + "\" is the name of a process of the run; name the node otherwise, as its " +
           "host";
  return "";
}

bool is_executable(const fs::path& file) {
  std::error_code unknown;
  return fs::is_regular_file(file, unknown) && ::access(file.c_str(), X_OK) == 0;
}

// What is wrong with one node, by itself: a key and why; nothing: it is fine.
std::optional<std::pair<std::string, std::string>> fault_of(const node_entry& node,
                                                            const cluster_config& cluster,
                                                            const link_config& link) {
  const auto launch = cluster.launch;
  const bool trainer_is_named = !link.listen.empty() || !cluster.network.empty();
  using fault = std::pair<std::string, std::string>;
  if (const auto why = wrong_name(node.name); !why.empty()) return fault("name", why);
  if (is_over_hosts(launch) && node.host.empty())
    return fault("host",
                 "is left out; name what " + std::string(word_of(launch)) + " is to be told");
  if (const auto why = wrong_host(node.host, launch, trainer_is_named); !why.empty())
    return fault("host", why);
  if (const auto why = wrong_address(node.address, cluster); !why.empty())
    return fault("address", why);
  if (!node.address.empty() && !node.network.empty())
    return fault("network", "says where its processes listen, and so does address; leave one out");
  if (const auto why = wrong_network(node.network); !why.empty()) return fault("network", why);
  if (launch == launch_way::local) {
    std::error_code unknown;
    if (!node.working_folder.empty() && !fs::is_directory(node.working_folder, unknown))
      return fault("working_folder", node.working_folder.string() +
                                         " is no folder of this machine, where its stages run; "
                                         "make it, or name another one");
    if (!node.program.empty() && !is_executable(node.program))
      return fault("program",
                   node.program.string() +
                       " is no program that may be executed on this machine, where its "
                       "stages run; leave it out, or name the path of the run's program");
  }
  for (const auto& entry : node.environment)
    if (entry.find('=') == std::string::npos || entry.starts_with('='))
      return fault("environment", '"' + entry + "\" is not NAME=VALUE");
  return std::nullopt;
}

// A port is for one process.
std::vector<error> check_ports(const draft& whole, const std::vector<std::size_t>& places) {
  std::vector<error> found;
  const auto& nodes = whole.config.cluster.nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto& address = nodes[i].address;
    const auto stages = std::ranges::count(places, i);
    if (!is_address(address) || address.ends_with(":0") || stages < 2) continue;
    found.push_back({errc::bad_config, at_node(whole, i, "address") + '"' + address +
                                           "\" has one port, but " + std::to_string(stages) +
                                           " stages are to listen there; leave the port out, and "
                                           "each takes a free one"});
  }
  return found;
}

}  // namespace

std::vector<error> check_nodes(draft& whole, const registries&) {
  const auto& config = whole.config.cluster;
  std::vector<error> found;
  const auto refuse = [&](std::size_t node, const std::string& key, const std::string& why) {
    found.push_back({errc::bad_config, at_node(whole, node, key) + why});
  };
  for (std::size_t i = 0; i < config.nodes.size(); ++i) {
    const auto& node = config.nodes[i];
    if (const auto wrong = fault_of(node, config, whole.config.link))
      refuse(i, wrong->first, wrong->second);
    const bool is_first = &*std::ranges::find(config.nodes, node.name, &node_entry::name) == &node;
    if (!node.name.empty() && !is_first)
      refuse(i, "name", "two nodes are named \"" + node.name + "\"; give each its own name");
  }
  return found;
}

std::vector<error> check_places(draft& whole, const registries&) {
  if (whole.config.cluster.nodes.empty()) return {};
  const auto rooms = rooms_of(whole.config);
  const auto& pipeline = whole.config.pipeline;
  const auto places = place_replicas(pipeline.stages, pipeline.replicas, rooms);
  if (places) return check_ports(whole, *places);
  const auto& [node, text, key] = places.error();
  return {{errc::bad_config, (node ? at_node(whole, *node, key) : "") + text}};
}

result<void> check_scheduler(draft& whole, const registries&) {
  const auto& config = whole.config.cluster;
  const auto refuse = [&whole](const std::string& key, const std::string& why) {
    return fail_at(whole, key, "cluster.launch", why);
  };
  if (!config.host_file.empty() && config.launch != launch_way::mpi)
    return refuse("cluster.host_file", "is mpirun's; choose launch = \"mpi\", or leave it out");
  auto nodes = nodes_of_scheduler(config);
  if (!nodes)
    return refuse(config.host_file.empty() ? "cluster.launch" : "cluster.host_file",
                  nodes.error().text);
  const auto stages = whole.config.pipeline.stages;
  if (config.nodes.empty() && nodes->size() > stages)
    return refuse("cluster.launch", std::to_string(nodes->size()) + " hosts are too many for " +
                                        counted(stages, "stage") +
                                        ", of which each host runs one at least; take fewer hosts, "
                                        "or more stages (--stages)");
  whole.config.cluster.nodes = std::move(*nodes);
  return {};
}

result<void> check_cluster(draft& whole, const registries&) {
  const auto& config = whole.config.cluster;
  const link_config& link = whole.config.link;
  const std::string way(word_of(config.launch));
  if (const auto why = wrong_network(config.network); !why.empty())
    return fail_at(whole, "cluster.network", why);
  if (const auto why = wrong_trainer_address(link.listen, config.launch); !why.empty())
    return fail_at(whole, "link.listen", why);
  const bool by_others = config.launch != launch_way::local || !config.nodes.empty();
  if (by_others && whole.config.pipeline.stages_in == placement::threads)
    return fail_at(whole, "pipeline.stages_in", "cluster.launch",
                   "stages in threads live in the trainer's process, and are launched nowhere; put "
                   "them in processes, or leave [cluster] and [[node]] out");
  if (is_over_hosts(config.launch) && config.nodes.empty())
    return fail_at(whole, "cluster.launch",
                   way + " needs hosts; name them in [[node]] tables" +
                       (config.launch == launch_way::mpi ? " or in a host_file" : ""));
  if (config.launch == launch_way::none && !config.nodes.empty())
    return fail_at(
        whole, "cluster.launch",
        "\"none\" starts nothing on nodes; leave the [[node]] tables out, or choose ssh");
  if (is_over_hosts(config.launch) && link.transport == transport::shm)
    return fail_at(whole, "link.transport", "cluster.launch",
                   "shared memory does not reach other hosts, on which \"" + way +
                       "\" starts the stages; choose auto, mixed or tcp");
  if (config.launch == launch_way::none && link.listen.empty())
    return fail_at(
        whole, "cluster.launch", "link.listen",
        "where others start the processes, they must know where to join: name an address "
        "with --listen ([link] listen)");
  if (config.push != push_extent::nothing && config.launch != launch_way::ssh)
    return fail_at(whole, "cluster.push", "cluster.launch",
                   "a program is copied to hosts over ssh alone, and not with \"" + way +
                       "\"; leave push out, or choose ssh");
  if (!config.logs.empty() && config.nodes.empty())
    return fail_at(whole, "cluster.logs",
                   "there is a file for each node, and no node; add [[node]] tables, or redirect "
                   "what the program writes");
  if (is_over_hosts(config.launch) && link.transport == transport::automatic)
    whole.config.link.transport = transport::mixed;
  return {};
}

result<void> check_data_node(draft& whole, const registries&) {
  const auto& nodes = whole.config.cluster.nodes;
  for (std::size_t i = 0; !whole.config.data.node.empty() && i < nodes.size(); ++i) {
    const bool says_memory = nodes[i].memory_mib > 0;
    const std::string key = says_memory ? "memory_mib" : "device_memory_mib";
    if ((says_memory || nodes[i].device_memory_mib > 0) && nodes[i].stages.empty())
      return fail(errc::bad_config,
                  at_node(whole, i, key) +
                      "stages are placed by the memory that they are predicted to take, which "
                      "follows from the data, and those are on node " +
                      whole.config.data.node + "; say which stages each node has, or leave " + key +
                      " or data.node out");
  }
  const auto place = stage_of_data(whole.config, whole.config.data);
  if (place) return {};
  return fail_at(whole, "data.node", place.error().text);
}

}  // namespace troupe::cluster
