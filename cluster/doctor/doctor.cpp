#include "cluster/doctor/doctor.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "cluster/doctor/round.hpp"
#include "cluster/doctor/tour.hpp"
#include "cluster/doctor/visits/reception.hpp"
#include "cluster/launch/agents/program_build.hpp"
#include "cluster/launch/find_program.hpp"
#include "cluster/launch/open_files.hpp"
#include "messages/base/host_name.hpp"

namespace troupe::cluster::doctor {
namespace {

/// `otherwise`: what to do where the error does not say it.
finding of_plan(const char* topic, const error& why, const char* otherwise) {
  const auto [what, remedy] = split_remedy(why.text);
  return {severity::error, topic, "", what, remedy.empty() ? otherwise : remedy};
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

void tell_who_starts(const link_config& link, std::vector<finding>& to) {
  to.push_back({severity::ok, "node", "",
                "others start the stages (launch = \"none\"): the machine of each is examined once "
                "it has joined, as it joins the run",
                ""});
  if (const auto who = who_may_join(link.listen); !who.empty())
    to.push_back({severity::ok, "node", "", who, ""});
}

/// Where processes come that others start.
result<std::unique_ptr<reception>> open_reception(const placement_tables& config,
                                                  const agent_plan& plan) {
  auto build = program_build();
  if (!build) return tl::unexpected(build.error());
  return reception::open({
      .link = link_options_of(plan.link),
      .listen = plan.listen,
      .names = stage_names_of(config.pipeline),
      .own = {host_name(), own_program().string(), std::move(*build)},
      .patience = milliseconds_of(config.cluster.join_timeout),
  });
}

/// What is under way to the nodes, since when.
struct departure {
  std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  result<std::unique_ptr<reception>> guests = nullptr;  ///< Null: nobody joins.
  std::vector<way_to_node> ways;
};

departure depart(const placement_tables& config, const agent_plan& plan, bool are_joined,
                 std::size_t nodes) {
  departure out;
  if (are_joined) out.guests = open_reception(config, plan);
  const auto examiners = std::max<std::size_t>(most_edges(config.pipeline, nodes), 1);
  out.ways = begin_to_reach(plan, trainer_name(config.cluster), examiners);
  if (!out.guests || *out.guests == nullptr) return out;
  for (const auto& name : stage_names_of(config.pipeline))
    out.ways.push_back(
        std::async(std::launch::async, [&from = **out.guests, name] { return from.await(name); }));
  return out;
}

/// Puts the ways to the nodes where they belong. The trainer's place is the reception's.
void take_ways(tour& all, departure& from) {
  for (std::size_t i = 0; i < from.ways.size(); ++i) all.nodes.at(i).way = std::move(from.ways[i]);
  auto& trainer = all.nodes.front();
  if (!from.guests) trainer.who.listening_error = from.guests.error().text;
  trainer.is_met_elsewhere = !from.guests || *from.guests != nullptr;
  if (from.guests && *from.guests != nullptr)
    trainer.listener.address = address_for_others((*from.guests)->address());
}

}  // namespace

examination examine(const trainer_config& config, const run_knowledge& program) {
  examination out;
  auto plan = plan_of(config);
  const bool are_joined = is_joined(config.cluster, program.has_stages);
  const auto joined = are_joined ? stage_names_of(config.pipeline).size() : 0;
  const auto nodes = 1 + joined + (plan ? plan->agents.hosts.size() : 0);
  const auto room = allow_open_files(own_files + files_a_visit * nodes);
  auto under_way = plan && room ? depart(config, *plan, are_joined, nodes) : departure();
  const auto needs = program.needs(config);  // takes its time, as the way to other hosts does
  if (!needs) out.others.push_back(of_preparing(needs.error(), config.cluster, config.data));
  if (!plan) {
    out.others.push_back(of_plan("settings", plan.error(), "change the settings that are named"));
    return out;
  }
  if (are_joined) tell_who_starts(config.link, out.others);
  const auto known = needs.value_or(run_needs{});
  auto placed = config;
  if (known.is_placed_by_memory) placed.cluster.stage_needs = known.predicted;
  auto all = prepare_tour(placed, std::move(*plan), known, program);
  if (room) {
    take_ways(all, under_way);
    out.edges = visit_all(all, under_way.begun);
  } else {
    const auto [what, remedy] = split_remedy(room.error().text);
    out.others.push_back(
        {severity::error, "open files", trainer_name(config.cluster), what, remedy});
  }
  out.is_sealed = all.transport == name_of(messages::link_transport::tcp);
  if (needs && config.data.node.empty() && all.nodes.front().who.facts)
    all.nodes.front().who.facts->data_source = config.data.source;
  end_visits(all);
  for (auto& node : all.nodes) out.nodes.push_back(std::move(node.who));
  return out;
}

}  // namespace troupe::cluster::doctor
