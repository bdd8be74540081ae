#include "cluster/training/stages/stage_reach.hpp"

#include <algorithm>
#include <caf/actor_cast.hpp>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "actors/futures/future.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/common.hpp"
#include "cluster/doctor/edge_plan_core.hpp"
#include "cluster/doctor/mtu_words.hpp"
#include "messages/base/log.hpp"
#include "messages/link/meeting_place.hpp"

namespace troupe::cluster {
namespace {

using namespace std::chrono_literals;
constexpr std::chrono::milliseconds until_warned = actors::usual_deadlines.reach;
constexpr std::chrono::milliseconds once_more = actors::usual_deadlines.reach_again;
static_assert(until_warned == 2s && once_more == 500ms);  // which the texts below say

/// From one stage to another, by their numbers.
struct way {
  std::size_t from = 0, to = 0;
  bool is_silent = false;  // there was no answer; else the system said why
  bool swallows = false;   // there is a connection, but nothing large comes through
  std::string why;         // empty: it is open
};

class reach_check {
 public:
  reach_check(node_group& group, actors::requester& ask, const placement_tables& config,
              std::vector<std::size_t> places)
      : group_(group),
        ask_(ask),
        nodes_(config.cluster.nodes),
        are_joined_(config.cluster.launch == launch_way::none),
        names_(stage_names_of(config.pipeline)),
        places_(std::move(places)) {
    for (const auto& host : group.hosts())
      doors_.push_back(messages::meeting_place::parse(group.node().address_of(host).address));
  }

  result<void> run(std::size_t stages, bool wraps) {
    std::vector<std::size_t> all(places_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    std::vector<way> ways;
    for (const auto& [from, to] : doctor::edges_to_probe(0, all, stages, wraps))
      if (places_[from] != places_[to] && !messages::meet_inside(doors_[from], doors_[to]))
        ways.push_back({.from = from, .to = to, .why = {}});
    const auto tried = attempt(std::move(ways), until_warned);
    const auto is_open = [](const way& each) { return each.why.empty(); };
    auto closed = tried;
    std::erase_if(closed, is_open);
    if (closed.empty()) return {};
    if (std::ranges::all_of(closed, &way::is_silent)) {
      log::warning(on_node(closed.front().from) + " has had no answer from " +
                   with_address(closed.front().to) + " for 2 s" + others(closed.size()));
      closed = attempt(std::move(closed), once_more);
      std::erase_if(closed, is_open);
      if (closed.empty()) return {};
    }
    // What the system refuses says more than silence.
    const auto told = std::ranges::find(closed, false, &way::is_silent);
    return refuse(told == closed.end() ? closed.front() : *told, closed.size(), tried);
  }

 private:
  /// Names one of the `closed` ways. `tried`: all of them, for what is open in the other direction.
  [[nodiscard]] tl::unexpected<error> refuse(const way& first, std::size_t closed,
                                             const std::vector<way>& tried) const {
    const auto begin = on_node(first.from) + " cannot reach " + with_address(first.to) + ": ";
    if (first.swallows)
      return fail(errc::address_unavailable, begin + doctor::large_ones_do_not + first.why +
                                                 others(closed) + "; " + doctor::lower_the_mtu);
    const bool is_open_back = std::ranges::any_of(tried, [&](const way& each) {
      return each.why.empty() && each.from == first.to && each.to == first.from;
    });
    return fail(errc::address_unavailable,
                begin + (first.is_silent ? "no answer within 2.5 s" : first.why) + others(closed) +
                    remedy(first, is_open_back));
  }

  /// The same ways with what became of them, all tried at once. Those of a node that is lost
  /// meanwhile count as open: whoever needs it next tells.
  std::vector<way> attempt(std::vector<way> ways, std::chrono::milliseconds patience) {
    std::vector<std::vector<std::size_t>> of_stage(places_.size());
    for (std::size_t i = 0; i < ways.size(); ++i) {
      ways[i].why.clear();
      of_stage[ways[i].from].push_back(i);
    }
    std::vector<std::pair<std::size_t, actors::future<actors::nodes_reached>>> answers;
    for (std::size_t stage = 0; stage < of_stage.size(); ++stage) {
      if (of_stage[stage].empty()) continue;
      actors::reach_nodes order{.addresses = {}, .patience_ms = patience.count()};
      for (const auto i : of_stage[stage]) order.addresses.push_back(doors_[ways[i].to].outside);
      answers.emplace_back(stage, ask_.request<actors::nodes_reached>(
                                      caf::actor_cast<actors::host_actor>(group_.hosts()[stage]),
                                      std::move(order), patience + actors::usual_deadlines.greet));
    }
    for (const auto& [stage, answer] : answers) {
      const auto said = answer.get();
      if (!said) continue;
      for (const auto& each : said->but) {
        auto& which = ways[of_stage[stage].at(each.which)];
        which.is_silent = each.is_silent;
        which.swallows = each.swallows;
        which.why = each.why;
      }
    }
    return ways;
  }

  /// Without nodes, which stages that others start need not have, a stage is one itself.
  [[nodiscard]] const std::string& node(std::size_t stage) const {
    return nodes_.empty() ? names_.at(stage) : nodes_[places_[stage]].name;
  }
  [[nodiscard]] std::string on_node(std::size_t stage) const {
    return names_.at(stage) + (nodes_.empty() ? "" : " on node " + node(stage));
  }
  [[nodiscard]] std::string with_address(std::size_t stage) const {
    return on_node(stage) + " at " + doors_[stage].outside;
  }
  [[nodiscard]] static std::string others(std::size_t count) {
    return count < 2 ? "" : " (and " + std::to_string(count - 1) + " more between stages)";
  }
  [[nodiscard]] std::string remedy(const way& closed, bool is_open_back) const {
    const auto& from = node(closed.from);
    const auto& to = node(closed.to);
    const auto back = "; the other way, " + to + " to " + from +
                      ", is open, but either may be the first to connect";
    return (is_open_back ? back : "") + "; let TCP from " + from + " in on " + to +
           " (routes, firewalls of both), or " +
           (are_joined_ ? "have " + names_.at(closed.to) +
                              " listen where the other stages reach it (troupe join --listen)"
                        : "name an address or network of node " + to +
                              " that the other nodes reach (address, network in [[node]])");
  }

  node_group& group_;
  actors::requester& ask_;
  const std::vector<node_entry>& nodes_;
  const bool are_joined_;  // others start the stages
  const std::vector<std::string> names_;
  const std::vector<std::size_t> places_;  // the node of each stage
  std::vector<messages::meeting_place> doors_;
};

}  // namespace

result<void> check_reach(node_group& group, actors::requester& ask, const placement_tables& config,
                         bool wraps) {
  const auto& how = config.cluster;
  if (how.launch == launch_way::local) return {};  // all are on this machine
  std::vector<std::size_t> places(group.hosts().size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  if (!how.nodes.empty()) {
    auto known = node_of_stages(config);
    if (!known) return tl::unexpected(known.error());
    places = std::move(*known);
  }
  return reach_check(group, ask, config, std::move(places)).run(config.pipeline.stages, wraps);
}

}  // namespace troupe::cluster
