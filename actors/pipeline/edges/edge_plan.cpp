#include "actors/pipeline/edges/edge_plan.hpp"

#include <algorithm>
#include <caf/actor_cast.hpp>
#include <chrono>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/futures/combine.hpp"
#include "actors/futures/requester.hpp"
#include "engine/collective/edge_ways.hpp"
#include "engine/collective/sum_choice_core.hpp"

namespace troupe::actors {
namespace {

/// That no other pipeline of this process has given a port.
std::uint64_t unused_port_number() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

/// By the stages' places.
result<std::vector<engine::sum_offer>> offers_for_edges(requester& ask,
                                                        const std::vector<stage_actor>& stages,
                                                        engine::edge_transport by) {
  std::vector<future<sum_offered>> asked;
  for (const auto& each : stages)
    asked.push_back(ask.request<sum_offered>(each, ask_sum_offer{by}, usual_deadlines.transfer));
  const auto answers = all(std::move(asked)).get();
  if (!answers) return tl::unexpected(answers.error());
  std::vector<engine::sum_offer> offers;
  for (const auto& each : *answers) offers.push_back(each.offer);
  return offers;
}

/// What was asked for: `edges = "nccl"`.
std::string setting(engine::edge_transport by) {
  return std::string("edges = \"") + (by == engine::edge_transport::ucx ? "ucx" : "nccl") + '"';
}

}  // namespace

/// How the two ends meet.
result<void> edge_plan::agree(way& what, const engine::sum_offer& sender,
                              const engine::sum_offer& receiver, bool network_is_trusted) {
  auto& port = what.port;
  port.name = (port.on == engine::edge::input ? "activations from " : "gradients from ") +
              sender.stage + " to " + receiver.stage;
  if (port.by == engine::edge_transport::ucx) return check_copies_between(sender, receiver);
  const auto needed = engine::reach_between(sender, receiver, network_is_trusted);
  if (!needed) return tl::unexpected(needed.error());
  reach_ = std::max(reach_, *needed);
  port.receiver_first = what.to < what.from;
  return {};
}

result<edge_plan> edge_plan::make(requester& ask, const std::vector<stage_actor>& stages,
                                  const engine::model_layout& layout, engine::edge_transport by,
                                  bool network_is_trusted) {
  edge_plan made;
  const auto ways = engine::ways_between_stages(layout);
  for (std::size_t first = 0; first < stages.size(); first += layout.stages)
    for (const auto& [from, to, on] : ways)
      if (stages[first + from].node() != stages[first + to].node())
        made.ways_.push_back(
            {.from = first + from, .to = first + to, .port = {.on = on, .by = by}});
  if (made.empty())
    return fail(errc::bad_config,
                setting(by) +
                    ": no two neighbouring stages are in different processes, and "
                    "inside one tensors are handed over as they are; leave it out");
  const auto offers = offers_for_edges(ask, stages, by);
  if (!offers) return tl::unexpected(offers.error());
  auto number = unused_port_number();
  for (auto& each : made.ways_) {
    each.port.number = number++;
    if (const auto agreed =
            made.agree(each, (*offers)[each.from], (*offers)[each.to], network_is_trusted);
        !agreed)
      return fail(agreed.error().code,
                  setting(by) + ": " + agreed.error().text +
                      "; or leave it out, and links carry what stages send each other");
  }
  made.line_ = "stages in different processes send each other activations and gradients by " +
               offers->at(made.ways_.front().from).library;
  return made;
}

result<void> edge_plan::invite(requester& ask, const std::vector<stage_actor>& stages,
                               engine::socket_reach sockets) {
  if (ways_.empty()) return {};
  std::vector<future<replicas_invited>> asked;
  for (auto& each : ways_) {
    each.port.sockets = sockets;
    asked.push_back(ask.request<replicas_invited>(
        stages[each.from], invite_replicas{2, sockets, each.port.by}, usual_deadlines.transfer));
  }
  const auto invited = all(std::move(asked)).get();
  if (!invited) return tl::unexpected(invited.error());
  for (std::size_t i = 0; i < ways_.size(); ++i)
    ways_[i].port.invitation = (*invited)[i].invitation;
  return {};
}

std::vector<edge_port> edge_plan::ports_of(std::size_t place,
                                           const std::vector<stage_actor>& stages) const {
  std::vector<edge_port> mine;
  for (const auto& each : ways_) {
    if (each.from != place && each.to != place) continue;
    auto port = each.port;
    port.sends = each.from == place;
    port.other = caf::actor_cast<caf::strong_actor_ptr>(stages[port.sends ? each.to : each.from]);
    mine.push_back(std::move(port));
  }
  return mine;
}

}  // namespace troupe::actors
