#include "actors/remote/node.hpp"

#include <algorithm>
#include <caf/actor_registry.hpp>
#include <caf/make_actor.hpp>
#include <future>
#include <iterator>
#include <utility>

#include "actors/arrivals/arrivals.hpp"
#include "actors/base/deadlines.hpp"
#include "actors/base/errors.hpp"
#include "actors/futures/request_inbox.hpp"
#include "messages/base/log.hpp"
#include "messages/link/meeting_place.hpp"

namespace troupe::actors {
namespace {

using messages::frame;
using messages::frame_kind;
using std::chrono::milliseconds;
using clock = std::chrono::steady_clock;

/// A node id that is the same wherever it is made from the same name.
caf::node_id make_id(const std::string& name, std::uint32_t number) {
  caf::node_id::default_data::host_id_type host{};
  host.fill(0x54);
  for (std::size_t i = 0; i < name.size(); ++i)
    host[i % host.size()] = static_cast<std::uint8_t>(host[i % host.size()] * 31 + name[i]);
  return caf::make_node_id(number, host);
}

}  // namespace

result<std::unique_ptr<node>> node::start(caf::actor_system& system, const message_registry& types,
                                          node_settings settings, const link_factory& make_link) {
  std::unique_ptr<node> made(new node(system, types, std::move(settings)));
  // The link's thread may report a peer as soon as it listens; it waits for the core here.
  std::unique_lock lock(made->mutex_);
  auto link = make_link(made->link_events());
  if (!link) return tl::unexpected(link.error());
  made->link_ = std::move(*link);
  auto address = made->link_->listen(made->settings_.listen);
  if (!address) {
    lock.unlock();
    return tl::unexpected(address.error());
  }
  made->address_.change(std::move(*address));
  made->core_ = std::make_unique<remote_core>(made->settings_.name, made->address(), own_identity(),
                                              made->settings_.liveness, made->settings_.admit,
                                              made->settings_.build);
  // From here on a pause of this process is noticed, and not only from the first interval's end.
  made->link_->post([self = made.get()] { self->on_tick(); });
  made->start_ticking();
  return made;
}

node::node(caf::actor_system& system, const message_registry& types, node_settings settings)
    : system_(system),
      types_(types),
      settings_(std::move(settings)),
      proxies_(system, *this),
      inbox_(request_inbox::of(system)),
      exported_(system),
      arrivals_(std::make_unique<arrivals>(system)),
      targets_(system, open_) {}

node::~node() {
  open_->close();
  say_goodbye();
  ticker_.reset();
  // Until the link's thread has ended it may call into this object, which then uses `link_`: so not
  // by `reset`, which would clear it first.
  delete link_.get();
  static_cast<void>(link_.release());
  proxies_.clear();
  targets_.clear();
  exported_.clear();
}

void node::start_ticking() {
  if (settings_.keep_time) return settings_.keep_time([this] { on_tick(); });
  ticker_ = std::make_unique<ticker>(settings_.liveness.interval, [this] {
    say_who_holds_the_link();
    link_->post([this] { on_tick(); });
  });
}

void node::say_goodbye() {
  std::unique_lock lock(mutex_);
  if (!core_) return;
  auto effects = core_->leave();
  perform_locked(effects);
  changed_.wait_for(lock, usual_deadlines.leave, [this] { return core_->alone(); });
}

messages::link_events node::link_events() {
  return {
      .on_peer_up = [this](peer_id peer) { step([&](auto& core) { return core.peer_up(peer); }); },
      .on_frame = [this](peer_id peer, frame&& in) { arrived(peer, std::move(in)); },
      .on_peer_down = [this](peer_id peer, const error& why) { peer_left(peer, why); },
      .on_refused = settings_.on_refused,
  };
}

void node::arrived(peer_id peer, frame&& in) {
  auto* const known = correspondents_.find(peer);
  const bool between_actors = in.kind == frame_kind::message || in.kind == frame_kind::request ||
                              (in.kind == frame_kind::response && in.target != 0);
  if (between_actors && known) {
    known->heard = true;
    return received(*known, in);
  }
  step([&](auto& core) { return core.frame_arrived(peer, std::move(in)); });
  if (known) return;
  std::unique_lock lock(mutex_);
  const auto name = core_->name_of(peer);
  const bool welcome = name && !name->empty() && !core_->lost(*name);
  lock.unlock();
  if (welcome) correspondents_.greeted(peer, *name);
}

void node::peer_left(peer_id peer, const error& why) {
  correspondents_.disconnected(peer);
  {
    const std::scoped_lock lock(mutex_);
    refusals_.disconnected(peer, why);
  }
  step([&](auto& core) { return core.peer_down(peer, why, clock::now()); });
}

caf::strong_actor_ptr node::handle_of(correspondent& at, caf::actor_id actor) {
  if (actor == 0) return nullptr;
  auto& handle = at.known[actor];
  if (!handle) handle = resolve({at.name, "", actor});
  return handle;
}

template <class Event>
void node::step(Event event) {
  remote_core::effects effects;
  {
    const std::scoped_lock lock(mutex_);
    if (!core_) return;
    effects = event(*core_);
    perform_locked(effects);
  }
  changed_.notify_all();
  for (auto& effect : effects) perform(effect);
}

void node::perform_locked(remote_core::effects& effects) {
  for (std::size_t i = 0; i < effects.size(); ++i) {
    if (auto* out = std::get_if<remote_core::transmit>(&effects[i])) {
      auto refusal = when_refused(out->peer, out->what);
      link_->send(out->peer, std::move(out->what), std::move(refusal));
    } else if (const auto* to = std::get_if<remote_core::connect>(&effects[i])) {
      connect(*to);
    } else if (const auto* end = std::get_if<remote_core::close>(&effects[i])) {
      if (!end->is_leaving)
        log::warning(settings_.name + ": closing a connection: " + end->why.text);
      link_->close(end->peer, end->why);
    } else if (const auto* route = std::get_if<remote_core::route_changed>(&effects[i])) {
      known(route->node).way->peer = route->peer.value;
    } else if (const auto* doubt = std::get_if<remote_core::examine>(&effects[i])) {
      auto more = core_->examined(doubt->node, state_of(doubt->process), clock::now());
      std::ranges::move(more, std::back_inserter(effects));
    }
  }
}

void node::perform(remote_core::effect& effect) {
  if (const auto* in = std::get_if<remote_core::received>(&effect)) {
    received(correspondents_.of(in->node), in->what);
  } else if (const auto* back = std::get_if<remote_core::undelivered>(&effect)) {
    undelivered(back->what, back->why);
  } else if (auto* no = std::get_if<remote_core::refuse>(&effect)) {
    answer(no->node, std::move(no->answer), no->why);
  } else if (const auto* heartbeat = std::get_if<remote_core::told>(&effect)) {
    if (settings_.on_told) settings_.on_told(heartbeat->node, heartbeat->what);
  } else if (const auto* silent = std::get_if<remote_core::doubt>(&effect)) {
    if (settings_.on_doubt) settings_.on_doubt(silent->node);
  } else if (const auto* end_of = std::get_if<remote_core::watch>(&effect)) {
    watch(end_of->node, end_of->actor);
  } else if (const auto* link = std::get_if<remote_core::linked>(&effect)) {
    if (system_.registry().get<caf::strong_actor_ptr>(link->between.here))
      static_cast<void>(resolve({link->node, "", link->between.there}));
  } else if (const auto* ended = std::get_if<remote_core::actor_ended>(&effect)) {
    actor_ended(*ended);
  } else if (const auto* no_entry = std::get_if<remote_core::close>(&effect)) {
    // Nothing but a node that may not join is closed with that code.
    if (no_entry->why.code == errc::bad_config && settings_.on_refused)
      settings_.on_refused(no_entry->why);
  } else if (const auto* down = std::get_if<remote_core::node_down>(&effect)) {
    node_down(*down);
  }
}

void node::connect(const remote_core::connect& to) {
  link_->connect(
      to.address, usual_deadlines.connect, [this, name = to.node](const result<peer_id>& peer) {
        step([&](auto& core) {
          return peer ? core.connected_to(name, *peer) : core.connect_failed(name, peer.error());
        });
      });
}

void node::send(const std::string& to, frame out) {
  step([&](auto& core) { return core.send(to, std::move(out)); });
}

void node::on_tick() {
  targets_.forget_ended();
  const auto told = settings_.tell ? settings_.tell() : std::vector<messages::element>();
  const auto heard = correspondents_.take_heard();
  step([&](auto& core) { return core.tick(clock::now(), heard, told); });
}

void node::say_who_holds_the_link() {
  constexpr milliseconds too_long{200};
  const auto now = arrivals_->held(clock::now());
  if (!now || now->time < too_long) {
    said_to_hold_ = 0;
    return;
  }
  if (std::exchange(said_to_hold_, now->actor) == now->actor) return;
  log::error(settings_.name + ": actor " + std::to_string(now->actor) +
             " was declared cheap and has held the link's thread for " +
             std::to_string(std::chrono::duration_cast<milliseconds>(now->time).count()) +
             " ms; until it returns, this node receives nothing, and others may take it for lost");
}

void node::lose(const std::string& other, const error& why) {
  link_->post([this, other, why] { step([&](auto& core) { return core.lose(other, why); }); });
}

void node::break_off(const error& why) {
  step([&](auto& core) { return core.break_off(why); });
}

result<std::string> node::listen_at(const std::string& address) {
  auto met = link_->listen(address);
  if (!met) return met;
  const std::scoped_lock lock(mutex_);
  address_.change(*met);
  core_->listens_at(*met);
  return met;
}

void node::note_address(const std::string& other, const std::string& address) {
  const std::scoped_lock lock(mutex_);
  core_->moved(other, address);
}

std::optional<milliseconds> node::stood_still() {
  const std::scoped_lock lock(mutex_);
  return core_->stood_still(clock::now());
}

void node::publish(const std::string& name, caf::strong_actor_ptr actor) {
  const auto address = address_of(actor);
  const std::scoped_lock lock(mutex_);
  core_->publish(name, address);
}

result<std::string> node::join(const std::string& address, milliseconds timeout) {
  const auto deadline = clock::now() + timeout;
  {
    const std::scoped_lock lock(mutex_);
    refusals_.begin();
  }
  auto connected = std::make_shared<std::promise<result<peer_id>>>();
  auto outcome = connected->get_future();
  link_->connect(address, timeout,
                 [connected](const result<peer_id>& peer) { connected->set_value(peer); });
  const auto peer = outcome.get();

  std::unique_lock lock(mutex_);
  if (!peer) {
    refusals_.end();
    return tl::unexpected(peer.error());
  }
  std::optional<std::string> name;
  const bool answered = changed_.wait_until(lock, deadline, [&] {
    name = core_->name_of(*peer);
    return !name || !name->empty();
  });
  refusals_.end();
  const auto where = messages::meeting_place::parse(address).outside;
  if (const auto* why = refusals_.find(*peer))
    return tl::unexpected(error_about("the node at " + where + " refuses this one", *why));
  if (!answered) return fail(errc::timed_out, "no hello from the node at " + where);
  if (!name) return fail(errc::peer_lost, "the node at " + where + " closed the connection");
  return *name;
}

bool node::wait_for(const std::string& other, milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return core_->connected(other); });
}

bool node::has_lost(const std::string& other) {
  const std::scoped_lock lock(mutex_);
  return core_->lost(other).has_value();
}

result<caf::strong_actor_ptr> node::find(const std::string& where, const std::string& actor,
                                         milliseconds timeout) {
  std::uint64_t number = 0;
  step([&](auto& core) {
    auto [asked, effects] = core.look_up(where, actor);
    number = asked;
    return std::move(effects);
  });
  std::unique_lock lock(mutex_);
  std::optional<result<frame>> outcome;
  changed_.wait_for(lock, timeout,
                    [&] { return (outcome = core_->outcome_of(number)).has_value(); });
  core_->forget_lookup(number);
  lock.unlock();
  if (!outcome)
    return fail(errc::timed_out, "node '" + where + "' did not say where '" + actor + "' is");
  if (!*outcome) return tl::unexpected(outcome->error());
  const auto& body = (*outcome)->body;
  const auto* address = body.size() == 1 && body[0].fields.size() == 1
                            ? std::get_if<messages::actor_ref>(&body[0].fields[0].of)
                            : nullptr;
  if (!address) return tl::unexpected(error_in(**outcome));
  return resolve(*address);
}

messages::actor_ref node::address_of(const caf::strong_actor_ptr& actor) {
  if (actor->node() != system_.node()) {
    const std::scoped_lock lock(mutex_);
    if (const auto* name = name_behind(actor->node()))
      return {*name, core_->address_of(*name), actor->id()};
  }
  return {settings_.name, address(), exported_.add(actor)};
}

std::string node::name_of(const caf::node_id& id) {
  const std::scoped_lock lock(mutex_);
  const auto* name = name_behind(id);
  return name ? *name : std::string();
}

const std::string* node::name_behind(const caf::node_id& id) const {
  const auto found =
      std::ranges::find_if(nodes_, [&](const auto& each) { return each.second.id == id; });
  return found == nodes_.end() ? nullptr : &found->first;
}

caf::strong_actor_ptr node::resolve(const messages::actor_ref& address) {
  if (address.node == settings_.name)
    return system_.registry().get<caf::strong_actor_ptr>(address.id);
  caf::node_id id;
  {
    const std::scoped_lock lock(mutex_);
    core_->heard_of(address.node, address.address);
    id = known(address.node).id;
  }
  auto proxy = proxies_.get_or_put(id, address.id);
  std::unique_lock lock(mutex_);  // only now: the end of a node is told to the proxies there are
  const auto lost = core_->lost(address.node);
  lock.unlock();
  if (lost) proxies_.erase(id, address.id, to_caf(*lost));
  return proxy;
}

node::known_node& node::known(const std::string& name) {
  auto& found = nodes_[name];
  if (!found.way)
    found = {make_id(name, static_cast<std::uint32_t>(nodes_.size())),
             std::make_shared<route>(name)};
  return found;
}

caf::strong_actor_ptr node::make_proxy(caf::node_id id, caf::actor_id actor) {
  std::shared_ptr<const route> way;
  {
    const std::scoped_lock lock(mutex_);
    way = nodes_.at(*name_behind(id)).way;
  }
  caf::actor_config config;
  auto proxy = caf::make_actor<remote_actor, caf::strong_actor_ptr>(
      actor, std::move(id), &system_, config, static_cast<message_carrier&>(*this), open_, way);
  send(way->name, {.kind = frame_kind::monitor, .target = actor});
  return proxy;
}

}  // namespace troupe::actors
