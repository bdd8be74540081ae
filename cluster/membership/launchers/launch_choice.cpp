#include "cluster/membership/launchers/launch_choice.hpp"

#include <optional>
#include <string_view>
#include <utility>

#include "cluster/config/trainer_config.hpp"
#include "cluster/config/words.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/hosts/network_range.hpp"
#include "cluster/launch/agents/program_build.hpp"
#include "messages/base/host_name.hpp"
#include "messages/base/log.hpp"
#include "messages/link/door/listener.hpp"
#include "messages/link/meeting_place.hpp"

namespace troupe::cluster {
namespace {

constexpr std::string_view listen_key = "--listen ([link] listen) ";

std::string at(const node_entry& node) {
  return "node " + node.name + " (" + node.host + "): ";
}

/// How an error about the trainer's address begins, by the setting that names it; empty: none does.
std::string own_listening(const link_config& link, const cluster_config& cluster) {
  if (!link.listen.empty()) return std::string(listen_key) + link.listen + ": ";
  return cluster.network.empty() ? "" : "[cluster] network: ";
}

/// Our address on the way to a node; nothing where the node is this machine.
result<std::optional<std::string>> address_towards(const node_entry& node, const link_config& link,
                                                   const cluster_config& cluster) {
  const auto& wanted = link.listen.empty() ? cluster.network : link.listen;
  const auto host = host_of_user(node.host);
  const auto there = address_of_host(host);
  if (!there)
    return fail(errc::address_unavailable,
                at(node) + there.error().text + "; if only " +
                    std::string(word_of(cluster.launch)) +
                    " knows the name, name our own address with --listen ([link] listen)");
  if (is_loopback_address(*there)) {
    if (means_this_machine(host)) return std::nullopt;
    return fail(errc::address_unavailable, at(node) + "\"" + host + "\" stands for " + *there +
                                               " here, which is this machine; see /etc/hosts");
  }
  auto own = listen_address(wanted, *there);
  if (own) return std::optional(std::move(*own));
  const auto setting = own_listening(link, cluster);
  return fail(own.error().code,
              (setting.empty() ? at(node) : setting + "the trainer: ") + own.error().text);
}

/// Where nodes reach the trainer, and those that do not.
struct trainer_place {
  std::string listen;
  std::map<std::size_t, error> unreached;
};

trainer_place trainer_place_of(const link_config& link, const cluster_config& cluster) {
  const auto& nodes = cluster.nodes;
  std::map<std::size_t, error> unreached;
  std::optional<std::string> chosen;
  const node_entry* first = nullptr;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto own = address_towards(nodes[i], link, cluster);
    if (!own && !link.listen.empty() && !address_of_host(host_of_user(nodes[i].host)))
      continue;  // only ssh knows the name, and the address is given
    if (!own) {
      unreached[i] = own.error();
    } else if (*own && chosen && *chosen != **own) {
      unreached[i] = {errc::address_unavailable,
                      at(nodes[i]) + "is reached from " + **own + ", but node " + first->name +
                          " from " + *chosen +
                          "; name the address that all of them reach with --listen ([link] "
                          "listen), or its network ([cluster] network)"};
    } else if (*own && !chosen) {
      chosen = **own;
      first = &nodes[i];
    }
  }
  const std::string without = link.listen.empty() ? "127.0.0.1:0" : link.listen;
  return {chosen.value_or(without), std::move(unreached)};
}

agent_host host_of_node(const cluster_config& cluster, const node_entry& node) {
  agent_host out{.name = node.name,
                 .host = is_over_hosts(cluster.launch) ? node.host : "",
                 .listen = !node.address.empty()   ? node.address
                           : !node.network.empty() ? node.network
                                                   : cluster.network,
                 .program = node.program,
                 .working_folder = node.working_folder,
                 .environment = {},
                 .threads = {},
                 .processes = {}};
  for (const auto& entry : node.environment) {
    const auto equals = entry.find('=');
    out.environment[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return out;
}

std::vector<std::string> carrier_options(const cluster_config& cluster) {
  if (cluster.launch == launch_way::slurm) return cluster.slurm_options;
  return cluster.launch == launch_way::mpi ? cluster.mpi_options : cluster.ssh_options;
}

bool is_proved_by_munge(const cluster_config& cluster) {
  if (cluster.stream == stream_proof::automatic) return cluster.launch == launch_way::slurm;
  return cluster.stream == stream_proof::munge;
}

/// What a user has to know of a scheduler before the run begins.
void tell_limits(const cluster_config& cluster) {
  if (cluster.launch == launch_way::mpi)
    log::info("launched by mpirun: a host that is lost ends the run");
  const bool by_scheduler =
      cluster.launch == launch_way::slurm || cluster.launch == launch_way::mpi;
  if (by_scheduler && !is_proved_by_munge(cluster))
    log::warning(
        "nothing proves whose the stream to each agent is: who can change bytes between "
        "the hosts while they are launched can learn the secret and run programs as you; "
        "with munge on all hosts, set stream = \"munge\" in [cluster]");
}

result<agent_settings> agent_settings_of(const launch_tables& config,
                                         const std::vector<std::string>& names) {
  const auto& cluster = config.cluster;
  const auto places = node_of_stages(config);
  if (!places) return tl::unexpected(places.error());
  agent_settings out{.hosts = {},
                     .carrier = cluster.launch,
                     .carrier_options = carrier_options(cluster),
                     .munge = is_proved_by_munge(cluster),
                     .silence = milliseconds_of(cluster.silence),
                     .patience = milliseconds_of(cluster.join_timeout),
                     .verbose = config.observe.verbose,
                     .logs = cluster.logs,
                     .push = cluster.push};
  for (const auto& node : cluster.nodes) out.hosts.push_back(host_of_node(cluster, node));
  const auto loads = thread_loads_of(config);
  for (std::size_t i = 0; i < loads.size(); ++i) out.hosts[i].threads = loads[i];
  for (std::size_t stage = 0; stage < names.size(); ++stage) {
    auto& host = out.hosts[(*places)[stage]];
    host.processes.push_back(names[stage]);
  }
  return out;
}

result<launch_choice> launch_by_agents(const launch_tables& config,
                                       const std::vector<std::string>& names) {
  tell_limits(config.cluster);
  auto plan = plan_agents(config, names);
  if (!plan) return tl::unexpected(plan.error());
  if (!plan->unreached.empty()) return tl::unexpected(plan->unreached.begin()->second);
  if (auto listens = check_trainer_listens(plan->listen); !listens)
    return tl::unexpected(listens.error());
  return make_agent_launcher(std::move(plan->link), std::move(plan->agents)).map([&](auto where) {
    return launch_choice{std::move(where), std::move(plan->listen)};
  });
}

/// Starts nothing, and so has nothing to end: who loses the trainer ends by itself.
class awaited_nodes final : public node_launcher {
 public:
  awaited_nodes(process_link link, std::string build)
      : link_(std::move(link)), build_(std::move(build)) {}

  actors::link_factory trainer_link() override { return process_link_factory(link_); }
  result<void> start(const std::string& name, const std::string& trainer) override {
    const auto at = messages::meeting_place::parse(trainer).outside;
    if (!std::exchange(told_who_, true))
      if (const auto who = who_may_join(at); !who.empty()) log::info(who);
    log::info(name + " may join now: " + how_to_join(name, at));
    return {};
  }
  bool starts_none() const override { return true; }
  result<void> invite(int socket, const std::string& trainer) override {
    return invite_over(link_, socket, trainer);
  }
  result<void> give_up(const std::string&) override { return {}; }
  std::vector<node_end> ends() const override { return {}; }
  std::string required_build() const override { return build_; }
  void expect_ends() override {}
  void join(bool) override {}

 private:
  const process_link link_;
  const std::string build_;
  bool told_who_ = false;
};

}  // namespace

launch_tables::launch_tables(const trainer_config& config)
    : placement_tables(config), link(config.link), observe(config.observe) {}

std::string address_for_others(const std::string& listening) {
  const auto host = host_of(listening);
  if (host != "0.0.0.0" && host != "::") return listening;
  return host_name() + listening.substr(listening.rfind(':'));
}

std::string how_to_join(const std::string& name, const std::string& listening) {
  return "troupe join " + address_for_others(listening) + " --name " + name +
         " --secret-file FILE --config FILE, which are the run's own";
}

std::string who_may_join(const std::string& listen) {
  if (!is_loopback(listen)) return "";
  return "only processes of this machine can join at " + listen +
         "; for stages on other machines, name an address of this one that they reach with "
         "--listen ([link] listen)";
}

result<void> check_trainer_listens(const std::string& listen) {
  if (listen.empty()) return {};
  return messages::door::check_free(listen).map_error([&](error why) {
    why.text.insert(0, std::string(listen_key) + listen + ": the trainer ");
    return why;
  });
}

std::unique_ptr<node_launcher> make_awaited_nodes(process_link link, std::string build) {
  return std::make_unique<awaited_nodes>(std::move(link), std::move(build));
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

result<agent_plan> plan_agents(const launch_tables& config, const std::vector<std::string>& names) {
  auto link = process_link_of(config.link);
  if (!link) return tl::unexpected(link.error());
  trainer_place place{config.link.listen, {}};
  if (is_over_hosts(config.cluster.launch)) {
    place = trainer_place_of(config.link, config.cluster);
    if (link->transport != transport::tcp) link->transport = transport::mixed;
    link->beyond_loopback = !is_loopback(place.listen);
  }
  auto settings = agent_settings_of(config, names);
  if (!settings) return tl::unexpected(settings.error());
  settings->trainer = place.listen;
  return agent_plan{std::move(*link), std::move(place.listen), std::move(*settings),
                    std::move(place.unreached)};
}

result<launch_choice> choose_launcher(const launch_tables& config,
                                      const std::vector<std::string>& names) {
  if (!config.cluster.nodes.empty()) return launch_by_agents(config, names);
  auto link = process_link_of(config.link);
  if (!link) return tl::unexpected(link.error());
  if (auto listens = check_trainer_listens(config.link.listen); !listens)
    return tl::unexpected(listens.error());
  if (config.cluster.launch == launch_way::none)
    return program_build().map([&](std::string build) {
      return launch_choice{make_awaited_nodes(std::move(*link), std::move(build)),
                           config.link.listen};
    });
  return make_process_launcher(std::move(*link), config.observe.verbose,
                               names.size() + config.cluster.understudies)
      .map([&](auto where) {
        return launch_choice{std::move(where), config.link.listen};
      });
}

}  // namespace troupe::cluster
