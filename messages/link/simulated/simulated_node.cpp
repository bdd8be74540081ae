#include "messages/link/simulated/simulated_node.hpp"

#include <fmt/format.h>

#include <array>
#include <new>
#include <span>
#include <utility>

namespace troupe::messages {
namespace {

link_options options_of(const simulated_options& network, const limits& bounds) {
  link_options out;
  out.bounds = bounds;
  out.in_flight_bytes = network.in_flight_bytes;
  out.chunk_bytes = network.chunk_bytes;
  out.inline_bytes = network.inline_bytes;
  out.pool_bytes = std::size_t{64} << 20;
  out.linger = std::chrono::duration_cast<std::chrono::milliseconds>(network.linger);
  return out;
}

}  // namespace

simulated_node::simulated_node(std::shared_ptr<simulated_network::state> network,
                               link_events events, limits bounds)
    : network_(std::move(network)),
      options_(options_of(network_->options(), bounds)),
      pool_(options_.pool_bytes),
      events_(guarded(std::move(events))),
      shared_{options_,   pool_,   counters_, events_,
              attention_, nullptr, nullptr,   [this] { return make_share(); }} {}

key_share simulated_node::make_share() const {
  std::array<std::uint64_t, 8> random;
  for (std::uint64_t& word : random) word = network_->random_word();
  return key_share::make({}, std::as_bytes(std::span(random)));
}

connection::clock::time_point simulated_node::clock_now() const {
  return connection::clock::time_point(network_->now());
}

// The owner of a link that crashed is told nothing.
link_events simulated_node::guarded(link_events events) {
  events.on_peer_up = guarded(std::move(events.on_peer_up));
  events.on_frame = guarded(std::move(events.on_frame));
  events.on_peer_down = guarded(std::move(events.on_peer_down));
  events.on_refused = guarded(std::move(events.on_refused));
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
  peer& added = add_peer(address, connection::role::connects, address);
  added.core->connect(clock_now() + timeout, guarded(std::move(done)));
  added.core->want_attention();
  soon();
}

void simulated_node::send(peer_id to, frame message, link::completion done) {
  if (!alive_) return;
  auto out = cut(std::move(message), options_.bounds, options_.inline_bytes, options_.chunk_bytes);
  peer* const found = find(to);
  if (!out) {
    events_.completed(guarded(std::move(done)), tl::unexpected(std::move(out.error())));
  } else if (found == nullptr || !found->core->is_up()) {
    events_.completed(guarded(std::move(done)),
                      fail(errc::peer_lost, fmt::format("no peer {} any more", to.value)));
  } else {
    (*out)->done = guarded(std::move(done));
    counters_.add_in_flight((*out)->tensor_bytes);
    found->core->send(std::move(*out));
  }
  soon();
}

void simulated_node::close(peer_id which, error reason) {
  if (!alive_) return;
  if (peer* const found = find(which)) {
    found->core->close(std::move(reason), clock_now());
    found->core->want_attention();
  }
  soon();
}

void simulated_node::post(std::function<void()> what) {
  network_->after({}, [weak = weak_from_this(), what = std::move(what)] {
    if (const auto self = weak.lock(); self && self->alive_) what();
  });
}

void simulated_node::destroy() {
  for (auto& [id, each] : peers_) each.core->cancel();
  events_.tell();
  alive_ = false;
  peers_.clear();
  network_->forget(this);
}

void simulated_node::crash() {
  alive_ = false;
  for (auto& [id, each] : peers_) each.core->cancel();
  attention_.clear();
  peers_.clear();
}

void simulated_node::accept(const std::shared_ptr<simulated_connection>& connection) {
  if (!alive_) return;
  peer& added =
      add_peer(fmt::format("connection {}", next_peer_), connection::role::accepts, connection);
  added.core->accept(clock_now() + options_.handshake_timeout, make_share());
  added.core->want_attention();
  act();
}

void simulated_node::deliver(peer_id to, const simulated_connection* by,
                             const std::shared_ptr<const simulated_message>& what) {
  if (peer* const found = find(to, by)) {
    try {
      found->by->arrive(what);
    } catch (const std::bad_alloc&) {
      found->core->break_off({errc::io_failed, "no memory for a message"});
    }
  }
  act();
}

void simulated_node::sent(peer_id from, const simulated_connection* by, std::uint64_t ticket) {
  if (peer* const found = find(from, by)) found->by->done(ticket);
  act();
}

void simulated_node::broken(peer_id which, const simulated_connection* by, const error& why,
                            bool was_reached) {
  if (peer* const found = find(which, by)) found->core->broken(why, was_reached);
  act();
}

template <class From>
simulated_node::peer& simulated_node::add_peer(const std::string& name, connection::role mine,
                                               From from) {
  const peer_id id{next_peer_++};
  peer& out = peers_[id];
  out.by = std::make_unique<simulated_carrier>(
      simulated_carrier::place{network_, shared_from_this(), id}, std::move(from));
  out.core = std::make_unique<connection>(id, name, mine, *out.by, shared_);
  out.by->serve(*out.core);
  return out;
}

simulated_node::peer* simulated_node::find(peer_id which) {
  const auto found = peers_.find(which);
  return found == peers_.end() ? nullptr : &found->second;
}

simulated_node::peer* simulated_node::find(peer_id which, const simulated_connection* by) {
  peer* const found = find(which);
  return found != nullptr && found->by->is_of(by) ? found : nullptr;
}

void simulated_node::soon() {
  network_->after({}, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->act();
  });
}

// Lets connections act and tells the owner. Nothing of them is on the stack while strangers are
// called: they may crash this node.
void simulated_node::act() {
  while (!attention_.empty())
    for (connection* const each : std::exchange(attention_, {})) let_act(*each);
  events_.tell();
}

void simulated_node::let_act(connection& core) {
  const peer_id id = core.id();
  peer& which = peers_.at(id);
  try {
    core.act(clock_now());
  } catch (const std::bad_alloc&) {
    core.break_off({errc::io_failed, "no memory for a tensor that came"});
  }
  const auto due = core.deadline();
  if (due != std::exchange(which.due, due) && due != connection::clock::time_point::max())
    network_->at(due.time_since_epoch(), [weak = weak_from_this(), id] {
      const auto self = weak.lock();
      if (!self) return;
      if (peer* const found = self->find(id)) found->core->want_attention();
      self->act();
    });
  if (core.is_released()) peers_.erase(id);
}

}  // namespace troupe::messages
