#include "messages/link/simulated_node.hpp"

#include <fmt/format.h>

#include <utility>

namespace troupe::messages {
namespace {

constexpr std::size_t pool_bytes = std::size_t{64} << 20;

}  // namespace

simulated_node::simulated_node(std::shared_ptr<simulated_network::state> network,
                               link_events events, limits bounds)
    : network_(std::move(network)),
      bounds_(bounds),
      pool_(pool_bytes),
      events_(guarded(std::move(events))),
      shared_{bounds_, pool_, counters_, events_} {}

// The owner of a link that crashed is told nothing.
link_events simulated_node::guarded(link_events events) {
  events.on_peer_up = guarded(std::move(events.on_peer_up));
  events.on_frame = guarded(std::move(events.on_frame));
  events.on_peer_down = guarded(std::move(events.on_peer_down));
  return events;
}

template <class Callback>
Callback simulated_node::guarded(Callback done) {
  if (!done) return done;
  return [this, done = std::move(done)](auto&&... what) {
    if (alive_) done(std::forward<decltype(what)>(what)...);
  };
}

void simulated_node::connect(const std::string& address, std::chrono::milliseconds timeout,
                             link::connected done) {
  if (!alive_) return;
  const auto connection = std::make_shared<simulated_connection>(network_);
  add_peer(address, 0, connection).connect(guarded(std::move(done)));
  const peer_id id{next_peer_ - 1};
  connection->join(0, shared_from_this(), id);
  connection->open(address);
  later(network_->now() + timeout, id, [](simulated_peer& peer) { peer.connect_expired(); });
}

void simulated_node::send(peer_id to, frame message, link::completion done) {
  if (!alive_) return;
  const auto& options = network_->options();
  auto out = cut(std::move(message), bounds_, options.inline_bytes, options.chunk_bytes);
  simulated_peer* const peer = find(to);
  if (!out) {
    events_.completed(guarded(std::move(done)), tl::unexpected(std::move(out.error())));
  } else if (peer == nullptr || !peer->is_up()) {
    events_.completed(guarded(std::move(done)),
                      fail(errc::peer_lost, fmt::format("no peer {} any more", to.value)));
  } else {
    (*out)->done = guarded(std::move(done));
    counters_.bytes_in_flight += (*out)->tensor_bytes;
    peer->send(std::move(*out));
  }
  soon(to);
}

void simulated_node::close(peer_id which, error reason) {
  if (!alive_) return;
  if (simulated_peer* const peer = find(which)) peer->close(std::move(reason));
  soon(which);
}

void simulated_node::destroy() {
  for (auto& [id, peer] : peers_) peer->cancel();
  events_.tell();
  alive_ = false;
  peers_.clear();
  network_->forget(this);
}

void simulated_node::crash() {
  alive_ = false;
  for (auto& [id, peer] : peers_) peer->cancel();
  peers_.clear();
}

void simulated_node::accept(const std::shared_ptr<simulated_connection>& connection) {
  if (!alive_) return;
  const peer_id id{next_peer_};
  simulated_peer& peer = add_peer(fmt::format("connection {}", id.value), 1, connection);
  connection->join(1, shared_from_this(), id);
  peer.accept();
  settle(id);
}

void simulated_node::deliver(peer_id to, const simulated_message& what) {
  if (simulated_peer* const peer = find(to)) peer->take(what);
  settle(to);
}

void simulated_node::broken(peer_id which, const error& why) {
  if (simulated_peer* const peer = find(which)) peer->broken(why);
  settle(which);
}

simulated_peer& simulated_node::add_peer(const std::string& name, unsigned end,
                                         const std::shared_ptr<simulated_connection>& connection) {
  const peer_id id{next_peer_++};
  auto made = std::make_unique<simulated_peer>(id, name, end, connection, shared_);
  return *peers_.emplace(id, std::move(made)).first->second;
}

simulated_peer* simulated_node::find(peer_id which) {
  const auto found = peers_.find(which);
  return found == peers_.end() ? nullptr : found->second.get();
}

void simulated_node::soon(peer_id which) {
  network_->after({}, [weak = weak_from_this(), which] {
    if (const auto self = weak.lock()) self->settle(which);
  });
}

template <class Action>
void simulated_node::later(simulated_network::state::time when, peer_id which, Action action) {
  network_->at(when, [weak = weak_from_this(), which, action = std::move(action)] {
    const auto self = weak.lock();
    if (!self) return;
    if (simulated_peer* const peer = self->find(which)) action(*peer);
    self->settle(which);
  });
}

// Lets a peer act and tells the owner. Nothing of the peer is on the stack while strangers are
// called: they may crash this node.
void simulated_node::settle(peer_id which) {
  if (simulated_peer* const peer = find(which)) {
    peer->settle();
    for (auto& [left, piece] : peer->take_leaving())
      later(left, which, [piece = std::move(piece)](simulated_peer& of) { of.piece_left(piece); });
    if (peer->wants_linger())
      later(network_->now() + network_->options().linger, which,
            [](simulated_peer& of) { of.linger_expired(); });
  }
  events_.tell();
  if (simulated_peer* const peer = find(which); peer != nullptr && peer->is_gone())
    peers_.erase(which);
}

}  // namespace troupe::messages
