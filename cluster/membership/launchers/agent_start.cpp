#include "cluster/membership/launchers/agent_start.hpp"

#include <utility>

#include "cluster/hosts/host_addresses.hpp"
#include "cluster/hosts/listening_core.hpp"
#include "cluster/hosts/network_range.hpp"
#include "cluster/launch/agents/agent.hpp"
#include "cluster/launch/agents/munge.hpp"
#include "cluster/launch/find_program.hpp"
#include "cluster/launch/push/push.hpp"

namespace troupe::cluster {
namespace {

/// What starts an agent on another host.
struct carrier {
  std::string name;     ///< Of its program.
  std::string package;  ///< That has it.
  /// Of a scheduler; null: ssh_words.
  std::vector<std::string> (*words)(const std::string& host,
                                    const std::vector<std::string>& options,
                                    const std::vector<std::string>& command);
};

carrier carrier_of(launch_way way) {
  if (way == launch_way::slurm) return {"srun", "slurm-client", srun_words};
  if (way == launch_way::mpi) return {"mpirun", "openmpi-bin", mpirun_words};
  return {"ssh", "openssh-client", nullptr};
}

}  // namespace

std::string carrier_name(launch_way way) {
  return carrier_of(way).name;
}

std::string program_on(const agent_host& host) {
  return host.program.empty() ? own_program().string() : host.program.string();
}

result<child_spec> agent_child(const agent_settings& settings, const agent_host& host) {
  child_spec child{.name = host.name, .arguments = {agent_word}, .environment = {}};
  if (host.host.empty()) {
    if (!host.program.empty()) child.program = host.program;
    return child;
  }
  const auto by = carrier_of(settings.carrier);
  const auto found = find_program(by.name);
  if (!found)
    return fail(errc::io_failed,
                "there is no " + by.name + " in PATH; install it (" + by.package + ")");
  child.program = *found;
  const auto& options = settings.carrier_options;
  child.arguments =
      by.words == nullptr
          ? ssh_words(host.host, options, program_on(host), host.library_path)
          : by.words(host.host, options,
                     {program_on(host), agent_word, settings.munge ? munge_word : sealed_word});
  return child;
}

result<std::unique_ptr<stream_seal>> agent_seal(const agent_settings& settings,
                                                const agent_host& host) {
  if (host.host.empty() || settings.carrier == launch_way::ssh) return nullptr;
  auto witness = settings.munge ? munge_witness() : stream_witness{};
  if (!witness) return tl::unexpected(witness.error());
  return std::make_unique<stream_seal>(stream_seal::end::launcher, std::move(*witness));
}

std::string choose_listening(const std::vector<agent_host*>& hosts,
                             const agent_settings& settings) {
  const auto trainer = host_of(settings.trainer);
  if (!is_over_hosts(settings.carrier) || kind_of(trainer) != address_kind::usual) return "";
  std::vector<listening_node> nodes;
  for (auto* const host : hosts) {
    if (!host->listen.empty()) return "";  // perhaps in a network that the others have not
    const auto name = host_of_user(host->host);
    nodes.push_back({address_of_host(name).value_or(name), host->addresses});
  }
  const auto network = nodes.empty() ? std::nullopt : choose_network(nodes, trainer);
  if (!network) return "";
  for (std::size_t i = 0; i < hosts.size(); ++i) hosts[i]->listen = network->addresses[i];
  return words_on_network(network->range, trainer);
}

result<void> push_program(agent_settings& settings) {
  std::vector<agent_place> places;
  for (const auto& host : settings.hosts)
    if (!host.host.empty() && host.program.empty())
      places.push_back({host.name, host.host, "", "", "ssh"});
  if (settings.push == push_extent::nothing || places.empty()) return {};
  const auto files = files_to_push(settings.push);
  if (!files) return tl::unexpected(files.error());
  const auto pushed = push_files(*files, places, settings.carrier_options);
  if (!pushed) return tl::unexpected(pushed.error());
  for (auto& host : settings.hosts) {
    const auto found = pushed->find(host.host);
    if (found == pushed->end() || !host.program.empty()) continue;
    host.program = found->second.program;
    host.library_path = found->second.library_path;
  }
  return {};
}

}  // namespace troupe::cluster
