#include "actors/remote/remote_core.hpp"

#include <algorithm>
#include <iterator>

namespace troupe::actors {
namespace {

using messages::frame;
using messages::frame_kind;

template <class Effects>
void append(Effects& to, Effects more) {
  std::ranges::move(more, std::back_inserter(to));
}

}  // namespace

remote_core::effects remote_core::peer_down(peer_id peer, const error& why, clock::time_point now) {
  return follow(nodes_.peer_down(peer, with_own_pause(why, now)));
}

remote_core::effects remote_core::frame_arrived(peer_id peer, frame in) {
  return follow(nodes_.frame_arrived(peer, std::move(in)));
}

remote_core::effects remote_core::connected_to(const std::string& node, peer_id peer) {
  return follow(nodes_.connected_to(node, peer));
}

remote_core::effects remote_core::connect_failed(const std::string& node, const error& why) {
  return follow(nodes_.connect_failed(node, why));
}

remote_core::effects remote_core::send(const std::string& node, frame out) {
  return follow(nodes_.send(node, std::move(out)));
}

remote_core::effects remote_core::lose(const std::string& node, const error& why) {
  return follow(nodes_.lose(node, why));
}

remote_core::effects remote_core::tick(clock::time_point now, const std::vector<std::string>& heard,
                                       const std::vector<messages::element>& beats_say) {
  for (const auto& node : heard) liveness_.heard(node);
  return follow(liveness_.tick(now), beats_say, now);
}

remote_core::effects remote_core::examined(const std::string& node, process_state state,
                                           clock::time_point now) {
  return follow(liveness_.examined(node, state), {}, now);
}

remote_core::effects remote_core::follow(const liveness::effects& what,
                                         const std::vector<messages::element>& beats_say,
                                         clock::time_point now) {
  effects out;
  for (const auto& each : what) {
    if (const auto* beat = std::get_if<liveness::beat>(&each)) {
      append(out, send(beat->node, {.kind = frame_kind::heartbeat,
                                    .lane = messages::lane::control,
                                    .body = beats_say}));
    } else if (const auto* suspect = std::get_if<examine>(&each)) {
      out.emplace_back(*suspect);
    } else if (const auto* far = std::get_if<doubt>(&each)) {
      out.emplace_back(*far);
    } else if (const auto* gone = std::get_if<liveness::lost>(&each)) {
      append(out, lose(gone->node, with_own_pause(gone->why, now)));
    }
  }
  return out;
}

remote_core::effects remote_core::follow(neighbourhood::effects what) {
  effects out;
  std::vector<route_changed> routes;  // after what waited for the connection
  for (auto& each : what) {
    if (auto* in = std::get_if<received>(&each)) {
      liveness_.heard(in->node);
      take(std::move(*in), out);
    } else if (const auto* up = std::get_if<neighbourhood::node_up>(&each)) {
      liveness_.node_up(up->node, up->process);
      routes.push_back({up->node, nodes_.peer_of(up->node).value_or(peer_id{})});
    } else if (const auto* down = std::get_if<neighbourhood::node_down>(&each)) {
      liveness_.node_down(down->node);
      routes.push_back({down->node, peer_id{}});
      out.emplace_back(end_of(down->node, down->why));
    } else if (auto* back = std::get_if<undelivered>(&each)) {
      if (back->what.kind == frame_kind::lookup) {
        lookup_failed(back->what.request_id, back->why);
      } else {
        out.emplace_back(std::move(*back));
      }
    } else if (auto* send = std::get_if<transmit>(&each)) {
      out.emplace_back(std::move(*send));
    } else if (auto* to = std::get_if<connect>(&each)) {
      out.emplace_back(std::move(*to));
    } else if (auto* end = std::get_if<close>(&each)) {
      out.emplace_back(std::move(*end));
    }
  }
  std::ranges::move(routes, std::back_inserter(out));
  return out;
}

void remote_core::take(received in, effects& out) {
  const auto& [node, what] = in;
  switch (what.kind) {
    case frame_kind::response:
      if (what.target == 0) return take_answer(std::move(in));
      break;
    case frame_kind::monitor:
      out.emplace_back(watch{node, what.target});
      return;
    case frame_kind::down:
      std::erase_if(links_[node], [&](const auto& each) { return each.there == what.sender; });
      out.emplace_back(actor_ended{node, std::move(in.what)});
      return;
    case frame_kind::link:
      links_[node].insert({what.sender, what.target});
      out.emplace_back(linked{node, {what.sender, what.target}});
      return;
    case frame_kind::unlink:
      links_[node].erase(remote_link{what.sender, what.target});
      return;
    case frame_kind::lookup:
      return take_lookup(in, out);
    case frame_kind::heartbeat:
      if (!what.body.empty()) out.emplace_back(told{node, std::move(in.what.body)});
      return;
    default:
      break;
  }
  out.emplace_back(std::move(in));
}

void remote_core::take_lookup(const received& in, effects& out) {
  frame answer{.kind = frame_kind::response, .request_id = in.what.request_id};
  const auto& body = in.what.body;
  const auto* const name = body.size() == 1 && body[0].fields.size() == 1
                               ? std::get_if<std::string>(&body[0].fields[0].of)
                               : nullptr;
  const auto found = name ? published_.find(*name) : published_.end();
  if (found == published_.end()) {
    out.emplace_back(refuse{in.node,
                            std::move(answer),
                            {errc::unknown_target, "node '" + name_ + "' has published no actor '" +
                                                       (name ? *name : "") + "'"}});
    return;
  }
  answer.body.push_back({"found", {{found->second}}});
  append(out, send(in.node, std::move(answer)));
}

/// Only the node that was asked may answer, and only once.
void remote_core::take_answer(received in) {
  const auto found = lookups_.find(in.what.request_id);
  if (found == lookups_.end() || found->second.node != in.node || found->second.outcome) return;
  found->second.outcome = std::move(in.what);
}

remote_core::question remote_core::look_up(const std::string& node, const std::string& actor) {
  question out{.number = ++last_lookup_, .to_perform = {}};
  lookups_.emplace(out.number, lookup{node});
  frame what{.kind = frame_kind::lookup, .request_id = out.number};
  what.body.push_back({"lookup", {{actor}}});
  out.to_perform = send(node, std::move(what));
  return out;
}

std::optional<result<frame>> remote_core::outcome_of(std::uint64_t number) const {
  const auto found = lookups_.find(number);
  return found == lookups_.end() ? std::nullopt : found->second.outcome;
}

void remote_core::lookup_failed(std::uint64_t number, const error& why) {
  const auto found = lookups_.find(number);
  if (found != lookups_.end() && !found->second.outcome)
    found->second.outcome = tl::unexpected(why);
}

remote_core::node_down remote_core::end_of(const std::string& node, const error& why) {
  for (const auto& [number, asked] : lookups_) {
    if (asked.node == node) lookup_failed(number, why);
  }
  node_down out{node, why, {}};
  if (const auto links = links_.extract(node))
    out.broken.assign(links.mapped().begin(), links.mapped().end());
  return out;
}

error remote_core::with_own_pause(const error& why, clock::time_point now) const {
  const auto pause = liveness_.stood_still(now);
  if (!pause) return why;
  return {why.code,
          why.text + " (this process itself had stood still for " + in_seconds(*pause) + ")"};
}

}  // namespace troupe::actors
