#include "actors/remote/neighbourhood.hpp"

#include <algorithm>
#include <utility>

#include "messages/link/meeting_place.hpp"

namespace troupe::actors {
namespace {

using messages::frame;
using messages::frame_kind;

frame make_hello(const greeting& who) {
  frame hello{.kind = frame_kind::hello};
  hello.body.push_back({"hello",
                        {{who.name},
                         {who.address},
                         {who.process.host},
                         {who.process.network},
                         {who.process.pid},
                         {who.process.started},
                         {who.build}}});
  return hello;
}

}  // namespace

std::optional<greeting> read_hello(const frame& hello) {
  if (hello.body.size() != 1 || hello.body[0].fields.size() != 7) return std::nullopt;
  const auto& fields = hello.body[0].fields;
  const auto text = [&](std::size_t i) { return std::get_if<std::string>(&fields[i].of); };
  const auto number = [&](std::size_t i) { return std::get_if<std::int64_t>(&fields[i].of); };
  for (const std::size_t i : {0, 1, 2, 3, 6}) {
    if (!text(i)) return std::nullopt;
  }
  if (!number(4) || !number(5) || text(0)->empty()) return std::nullopt;
  return greeting{*text(0), *text(1), {*text(2), *text(3), *number(4), *number(5)}, *text(6)};
}

neighbourhood::effects neighbourhood::peer_up(peer_id peer) {
  names_.emplace(peer, "");
  if (left_) return {close{peer, {errc::cancelled, "this node leaves"}, true}};
  return {transmit{peer, make_hello(self_)}};
}

neighbourhood::effects neighbourhood::frame_arrived(peer_id peer, frame in) {
  const auto found = names_.find(peer);
  if (found == names_.end()) return {};
  if (in.kind == frame_kind::hello) return greeted(peer, in);
  if (found->second.empty()) return came_early(peer, std::move(in));
  auto& node = neighbours_[found->second];
  if (node.lost) return {};  // it was cut off, or these are the last words of a connection
  effects out;
  if (in.kind == frame_kind::goodbye)
    node.leaving = true;
  else
    out.emplace_back(received{found->second, std::move(in)});
  return out;
}

// The hello travels on the data lane, and small frames of the control lane may overtake it.
neighbourhood::effects neighbourhood::came_early(peer_id peer, frame in) {
  if (in.kind == frame_kind::heartbeat) return {};
  auto& waiting = early_[peer];
  if (in.lane != messages::lane::control || !in.tensors.empty() || waiting.size() >= most_early)
    return {close{peer, {errc::bad_frame, "a peer spoke before it said hello"}}};
  waiting.push_back(std::move(in));
  return {};
}

neighbourhood::effects neighbourhood::connected_to(const std::string& node, peer_id peer) {
  const auto found = names_.find(peer);
  if (found != names_.end() && found->second.empty()) awaited_[peer] = node;
  return {};
}

neighbourhood::effects neighbourhood::greeted(peer_id peer, const frame& hello) {
  const auto who = read_hello(hello);
  auto& name = names_.at(peer);
  if (!who || !name.empty())
    return {close{peer, {errc::bad_frame, "a peer's hello is malformed or repeated"}}};
  if (who->name == self_.name)
    return {close{
        peer,
        {errc::bad_config, "two nodes are named '" + who->name + "'; give each its own name"}}};
  if (auto may = admitted(*who); !may) return {close{peer, may.error()}};
  effects out;
  name = who->name;
  if (auto awaited = awaited_.extract(peer); awaited && awaited.mapped() != name)
    out = connect_failed(awaited.mapped(),
                         {errc::address_unavailable, "node '" + name + "' answers there"});
  auto& node = neighbours_[name];
  if (node.lost) {
    out.emplace_back(close{peer, {errc::stale, "node '" + name + "' was lost and cannot return"}});
    return out;
  }
  if (!who->address.empty()) node.address = who->address;
  if (!node.peer) {  // else both sides connected at once: one way each
    node.peer = peer;
    node.process = who->process;
    out.emplace_back(node_up{name, who->process});
    for (auto& waiting : std::exchange(node.backlog, {}))
      out.emplace_back(transmit{peer, std::move(waiting)});
  }
  if (auto early = early_.extract(peer))
    for (auto& waiting : early.mapped())
      for (auto& one : frame_arrived(peer, std::move(waiting))) out.push_back(std::move(one));
  return out;
}

result<void> neighbourhood::admitted(const greeting& who) const {
  const auto known = neighbours_.find(who.name);
  if (known != neighbours_.end() && known->second.peer && known->second.process != who.process)
    return fail(errc::bad_config, "the name '" + who.name + "' is taken: process " +
                                      std::to_string(known->second.process.pid) +
                                      " has joined as that; give each process its own name");
  return admit_ ? admit_(who) : result<void>();
}

neighbourhood::effects neighbourhood::peer_down(peer_id peer, const error& why) {
  const auto found = names_.find(peer);
  if (found == names_.end()) return {};
  const auto name = found->second;
  names_.erase(found);
  early_.erase(peer);
  if (auto awaited = awaited_.extract(peer)) return connect_failed(awaited.mapped(), why);
  if (name.empty()) return {};
  const auto node = neighbours_.find(name);
  if (node == neighbours_.end() || node->second.lost) return {};
  // A node that leaves has said so on each of its connections, and may have said more on another.
  if (node->second.leaving &&
      std::ranges::any_of(names_, [&](const auto& open) { return open.second == name; }))
    return {};
  if (node->second.leaving) return gone(name, {errc::cancelled, "node '" + name + "' has left"});
  // Whoever does not admit us says so with that code, and may have greeted us before.
  const auto code = why.code == errc::bad_config ? errc::bad_config : errc::peer_lost;
  auto out = gone(name, {code, "node '" + name + "' is gone: " + why.text});
  if (left_) return out;  // who leaves is closing all of them in order
  close_all(name, {errc::peer_lost, "another connection of node '" + name + "' was lost"}, out);
  return out;
}

neighbourhood::effects neighbourhood::lose(const std::string& name, const error& why) {
  const auto node = neighbours_.find(name);
  if (node == neighbours_.end() || node->second.lost) return {};
  auto out = node->second.leaving
                 ? gone(name, {errc::cancelled, "node '" + name + "' has left"})
                 : gone(name, {errc::peer_lost, "node '" + name + "' is gone: " + why.text});
  // The text is for the other side.
  close_all(name,
            {why.code, "node '" + self_.name + "' has cut node '" + name + "' off: " + why.text},
            out);
  return out;
}

void neighbourhood::close_all(const std::string& name, const error& why, effects& out) const {
  for (const auto& [peer, of] : names_) {
    if (of == name) out.emplace_back(close{peer, why});
  }
}

neighbourhood::effects neighbourhood::connect_failed(const std::string& name, const error& why) {
  auto& node = neighbours_[name];
  if (node.peer || node.lost) return {};
  return gone(name, {errc::peer_lost, "node '" + name + "' at " +
                                          messages::meeting_place::parse(node.address).outside +
                                          " cannot be reached: " + why.text});
}

neighbourhood::effects neighbourhood::gone(const std::string& name, const error& why) {
  auto& node = neighbours_.at(name);
  effects out;
  node.lost = why;
  node.peer.reset();
  out.emplace_back(node_down{name, why});
  for (auto& waiting : std::exchange(node.backlog, {}))
    out.emplace_back(undelivered{name, std::move(waiting), why});
  return out;
}

neighbourhood::effects neighbourhood::send(const std::string& name, frame message) {
  effects out;
  auto& node = neighbours_[name];
  if (node.lost) {
    out.emplace_back(undelivered{name, std::move(message), *node.lost});
  } else if (node.leaving) {
    out.emplace_back(
        undelivered{name, std::move(message), {errc::cancelled, "node '" + name + "' is leaving"}});
  } else if (node.peer) {
    out.emplace_back(transmit{*node.peer, std::move(message)});
  } else {
    node.backlog.push_back(std::move(message));
    if (!std::exchange(node.connecting, true)) out.emplace_back(connect{name, node.address});
  }
  return out;
}

neighbourhood::effects neighbourhood::leave() {
  effects out;
  if (std::exchange(left_, true)) return out;
  for (const auto& [peer, name] : names_) {
    out.emplace_back(transmit{peer, frame{.kind = frame_kind::goodbye}});
    out.emplace_back(close{peer, {errc::cancelled, "this node leaves"}, true});
  }
  return out;
}

neighbourhood::effects neighbourhood::break_off(const error& why) {
  effects out;
  if (std::exchange(left_, true)) return out;
  for (const auto& [peer, name] : names_) out.emplace_back(close{peer, why, true});
  return out;
}

void neighbourhood::heard_of(const std::string& name, const std::string& address) {
  auto& node = neighbours_[name];
  if (node.address.empty()) node.address = address;
}

const std::string& neighbourhood::address_of(const std::string& node) const {
  static const std::string unknown;
  const auto found = neighbours_.find(node);
  return found == neighbours_.end() ? unknown : found->second.address;
}

std::optional<std::string> neighbourhood::name_of(peer_id peer) const {
  const auto found = names_.find(peer);
  if (found == names_.end()) return std::nullopt;
  return found->second;
}

bool neighbourhood::connected(const std::string& node) const {
  const auto found = neighbours_.find(node);
  return found != neighbours_.end() && found->second.peer.has_value();
}

std::optional<peer_id> neighbourhood::peer_of(const std::string& node) const {
  const auto found = neighbours_.find(node);
  return found == neighbours_.end() ? std::nullopt : found->second.peer;
}

std::optional<error> neighbourhood::lost(const std::string& node) const {
  const auto found = neighbours_.find(node);
  return found == neighbours_.end() ? std::nullopt : found->second.lost;
}

}  // namespace troupe::actors
