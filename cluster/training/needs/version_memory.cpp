#include "cluster/training/needs/version_memory.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

#include "actors/recovery/kept_stages.hpp"
#include "actors/recovery/kept_versions.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/hosts/keepers_core.hpp"
#include "cluster/membership/node_launcher.hpp"
#include "cluster/training/restarts/keeper_process.hpp"

namespace troupe::cluster {
namespace {

/// Who keeps the versions of a stage beside its own node, and what of them passes over a link.
struct kept_elsewhere {
  other_keepers by;
  bool on_cpu = false;            // it computes there
  bool lends = false;             // to the trainer's machine, instead of copying
  bool is_sent_to_stage = false;  // the keeper beside another stage shares no memory with it
  bool is_sent_here = false;      // that on the trainer's machine shares none
};

/// Whether processes of one machine lend each other memory, and all that join may be of this one.
bool lends_here(const cluster_config& cluster, const link_config& link) {
  return transport_of(link) == messages::link_transport::shm ||
         (link.transport == transport::mixed && cluster.launch != launch_way::none);
}

/// Of the stages of all replicas, as far as the config tells it. `are_whole`: see are_lent_whole;
/// `outlives`: see outlives_trainer.
result<std::vector<kept_elsewhere>> keepers_of(const placement_tables& config,
                                               const link_config& link, bool are_whole,
                                               bool outlives) {
  const auto& cluster = config.cluster;
  const auto seats = seats_of_stages(config);
  const auto count = seats.size();
  const bool share = lends_here(cluster, link);
  std::vector<std::string> nodes(count), hosts(count);
  std::vector<bool> here(count, true);
  if (!cluster.nodes.empty()) {
    const auto places = node_of_stages(config);
    if (!places) return tl::unexpected(places.error());
    for (std::size_t i = 0; i < count; ++i) {
      const auto& node = cluster.nodes[places->at(i)];
      nodes[i] = node.name;
      if (!is_over_hosts(cluster.launch)) continue;
      hosts[i] = host_of_user(node.host);
      here[i] = means_this_machine(hosts[i]);
    }
  }
  std::vector<bool> on_cpu, lends;
  for (std::size_t i = 0; i < count; ++i) {
    on_cpu.push_back(seats[i].device == "cpu");
    lends.push_back(share && are_whole && on_cpu[i] && here[i]);
  }
  const auto by = keepers_beside(nodes, lends, outlives);
  std::vector<kept_elsewhere> all;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& other = by[i].stage;
    all.push_back({.by = by[i],
                   .on_cpu = on_cpu[i],
                   .lends = lends[i],
                   .is_sent_to_stage = other && (!share || hosts[i] != hosts[*other]),
                   .is_sent_here = by[i].trainer && (!share || !here[i])});
  }
  return all;
}

/// Which stages' versions are sent, in any replica.
std::vector<std::optional<sent_version>> sent_versions(const std::vector<stage_bytes>& bytes,
                                                       const std::vector<kept_elsewhere>& kept,
                                                       bool same_on_every_cpu) {
  std::vector<std::optional<sent_version>> all(bytes.size());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const auto& of = bytes[i % bytes.size()];
    const double state = of.tensors + of.state;
    // A gradient for each parameter, or its value where another replica updates it.
    if (kept[i].is_sent_to_stage || kept[i].is_sent_here)
      all[i % bytes.size()] =
          sent_version{.state = state, .update = same_on_every_cpu ? of.tensors : state};
  }
  return all;
}

/// What stages' processes keep for a stage of another place, or what arrives there.
struct for_others {
  double versions = 0;
  double arriving = 0;
};

/// What the process that outlives the trainer has of stages that lend it nothing.
struct for_next_trainer {
  double kept = 0;      // and what has come of each next version
  double computed = 0;  // of those that it computes, the largest: it does one at a time
};

/// `version`: one of the stage; `update`: what a keeper has until it has computed one.
void add_to_outliving(const kept_elsewhere& kept, double version, double update,
                      for_next_trainer& to) {
  constexpr double behind_notes = actors::kept_stages::versions_behind_notes;
  if (kept.lends) return;
  const bool is_computed = kept.is_sent_here && kept.on_cpu && update > 0;
  to.kept += behind_notes * version + (is_computed ? update : version);
  if (is_computed) to.computed = std::max(to.computed, version);
}

/// What versions of one stage take beside its own node, with stages and with the trainer.
void add_elsewhere(const kept_elsewhere& kept, double version, double update, bool outlives,
                   std::vector<for_others>& at, predicted_memory& to) {
  constexpr double usual = actors::kept_versions::most;
  if (const auto& other = kept.by.stage) {
    at[*other].versions += usual * version;
    if (kept.is_sent_to_stage) at[*other].arriving += update;
  }
  if (kept.by.trainer && !outlives)
    to.trainer += usual * version + (kept.is_sent_here && kept.on_cpu ? update : 0);
}

}  // namespace

result<void> add_versions(const std::vector<stage_bytes>& bytes, bool are_whole,
                          const stage_tables& config, const registries& known,
                          predicted_memory& to) {
  constexpr double usual = actors::kept_versions::most;
  const auto stages = bytes.size();
  const bool outlives = outlives_trainer(config.train, config.pipeline);
  const auto version = [&](std::size_t stage) { return bytes[stage].tensors + bytes[stage].state; };
  const auto kept = keepers_of(config, config.link, are_whole, outlives);
  if (!kept) return tl::unexpected(kept.error());
  const bool maps = are_whole && lends_here(config.cluster, config.link) &&
                    std::ranges::all_of(*kept, &kept_elsewhere::on_cpu);
  const auto entry = known.optimizers.find(config.optimizer.name);
  if (!entry) return tl::unexpected(entry.error());
  to.sent = sent_versions(bytes, *kept, entry->same_on_every_cpu);
  const auto computes = [&](std::size_t stage) {
    return to.sent[stage] && to.sent[stage]->is_update(false);
  };
  std::vector<for_others> at(kept->size());
  for_next_trainer outliving;
  for (std::size_t i = 0; i < kept->size(); ++i) {
    const auto stage = i % stages;
    const double update = computes(stage) ? to.sent[stage]->update : 0;
    add_elsewhere((*kept)[i], version(stage), update, outlives, at, to);
    if (outlives) add_to_outliving((*kept)[i], version(stage), update, outliving);
  }
  to.keeper = outliving.kept + outliving.computed;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    for_others most;
    bool lends = false;
    for (auto i = stage; i < at.size(); i += stages) {
      most.versions = std::max(most.versions, at[i].versions);
      most.arriving = std::max(most.arriving, at[i].arriving);
      lends = lends || (*kept)[i].lends;
    }
    // One that the process that outlives the trainer still borrows.
    const double lent_longer = outlives && lends ? version(stage) : 0;
    auto& own = to.stages.at(stage);
    add_on_host(own, usual * version(stage) + lent_longer + most.versions);
    own.on_cpu += most.arriving;
    if (computes(stage)) own.on_cpu += bytes[stage].parameters;
    if (maps) to.mapped += most.versions;
  }
  return {};
}

}  // namespace troupe::cluster
