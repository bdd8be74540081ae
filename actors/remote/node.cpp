#include "actors/remote/node.hpp"

#include <caf/actor_registry.hpp>
#include <caf/make_actor.hpp>
#include <chrono>
#include <iterator>
#include <utility>

#include "actors/errors.hpp"
#include "messages/base/log.hpp"

namespace troupe::actors {
namespace {

using messages::frame;
using messages::frame_kind;
using std::chrono::milliseconds;

constexpr milliseconds connect_timeout{5000};
constexpr milliseconds goodbye_timeout{1000};

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
  made->address_ = *address;
  made->core_ =
      std::make_unique<neighbourhood>(made->settings_.name, made->address_, own_identity());
  made->ticker_ = std::make_unique<ticker>(made->settings_.liveness.interval, [self = made.get()] {
    self->run_on_link([self] { self->judge(); });
  });
  return made;
}

node::node(caf::actor_system& system, const message_registry& types, node_settings settings)
    : system_(system),
      types_(types),
      settings_(std::move(settings)),
      proxies_(system, *this),
      liveness_(settings_.liveness, own_identity()) {}

node::~node() {
  open_->close();
  say_goodbye();
  ticker_.reset();
  // Until the link's thread has ended it may call into this object, which then uses `link_`: so not
  // by `reset`, which would clear it first.
  delete link_.get();
  static_cast<void>(link_.release());
  proxies_.clear();
}

void node::say_goodbye() {
  std::unique_lock lock(mutex_);
  if (!core_) return;
  for (auto& effect : core_->leave()) perform_locked(effect);
  changed_.wait_for(lock, goodbye_timeout, [this] { return core_->alone(); });
}

messages::link_events node::link_events() {
  return {
      .on_peer_up = [this](peer_id peer) { step([&](auto& core) { return core.peer_up(peer); }); },
      .on_frame = [this](peer_id peer, frame in) { arrived(peer, std::move(in)); },
      .on_peer_down = [this](peer_id peer, const error& why) { peer_left(peer, why); },
  };
}

void node::arrived(peer_id peer, frame in) {
  const auto known = greeted_.find(peer.value);
  const bool between_actors = in.kind == frame_kind::message || in.kind == frame_kind::request ||
                              in.kind == frame_kind::response;
  if (between_actors && known != greeted_.end()) {
    known->second->heard = true;
    return received(*known->second, in);
  }
  const bool greeted = known != greeted_.end();
  step([&](auto& core) { return core.frame_arrived(peer, std::move(in)); });
  if (greeted) return;
  std::unique_lock lock(mutex_);
  const auto name = core_->name_of(peer);
  const bool welcome = name && !name->empty() && !core_->lost(*name);
  lock.unlock();
  if (welcome) greeted_.emplace(peer.value, &correspondent_of(*name));
}

void node::peer_left(peer_id peer, const error& why) {
  if (const auto known = greeted_.extract(peer.value)) known.mapped()->known.clear();
  step([&](auto& core) { return core.peer_down(peer, with_own_pause(why)); });
}

node::correspondent& node::correspondent_of(const std::string& name) {
  auto& found = correspondents_[name];
  if (found.name.empty()) found.name = name;
  return found;
}

caf::strong_actor_ptr node::handle_of(correspondent& at, caf::actor_id actor) {
  if (actor == 0) return nullptr;
  auto& handle = at.known[actor];
  if (!handle) handle = resolve({at.name, "", actor});
  return handle;
}

template <class Event>
void node::step(Event event) {
  neighbourhood::effects effects;
  {
    const std::scoped_lock lock(mutex_);
    if (!core_) return;
    effects = event(*core_);
    for (auto& effect : effects) perform_locked(effect);
    note_routes(effects);
  }
  changed_.notify_all();
  for (auto& effect : effects) perform(effect);
}

/// After what waited for the connection has been sent, later frames need not ask the core.
void node::note_routes(const neighbourhood::effects& effects) {
  for (const auto& effect : effects) {
    if (const auto* up = std::get_if<neighbourhood::node_up>(&effect)) {
      route_to(up->node)->peer = core_->peer_of(up->node).value_or(peer_id{}).value;
    } else if (const auto* down = std::get_if<neighbourhood::node_down>(&effect)) {
      route_to(down->node)->peer = 0;
    }
  }
}

std::shared_ptr<route> node::route_to(const std::string& name) {
  auto& found = routes_[name];
  if (!found) found = std::make_shared<route>(name);
  return found;
}

void node::perform_locked(neighbourhood::effect& effect) {
  if (auto* out = std::get_if<neighbourhood::transmit>(&effect)) {
    auto refusal = when_refused(out->peer, out->what);
    link_->send(out->peer, std::move(out->what), std::move(refusal));
  } else if (const auto* to = std::get_if<neighbourhood::connect>(&effect)) {
    connect(*to);
  } else if (const auto* end = std::get_if<neighbourhood::close>(&effect)) {
    if (end->why.code != errc::cancelled)
      log::warning(settings_.name + ": closing a connection: " + end->why.text);
    link_->close(end->peer, end->why);
  } else if (const auto* up = std::get_if<neighbourhood::node_up>(&effect)) {
    liveness_.node_up(up->node, up->process);
  } else if (const auto* down = std::get_if<neighbourhood::node_down>(&effect)) {
    liveness_.node_down(down->node);
  } else if (const auto* in = std::get_if<neighbourhood::received>(&effect)) {
    liveness_.heard(in->node);
  }
}

void node::perform(neighbourhood::effect& effect) {
  if (const auto* in = std::get_if<neighbourhood::received>(&effect)) {
    received(correspondent_of(in->node), in->what);
  } else if (const auto* lost = std::get_if<neighbourhood::undelivered>(&effect)) {
    undelivered(lost->what, lost->why);
  } else if (const auto* down = std::get_if<neighbourhood::node_down>(&effect)) {
    node_down(down->node, down->why);
  }
}

void node::connect(const neighbourhood::connect& to) {
  link_->connect(to.address, connect_timeout, [this, name = to.node](const result<peer_id>& peer) {
    step([&](auto& core) {
      return peer ? core.connected_to(name, *peer) : core.connect_failed(name, peer.error());
    });
  });
}

void node::send(const std::string& to, frame out) {
  step([&](auto& core) { return core.send(to, std::move(out)); });
}

/// A frame to nobody is refused on the link's thread: wherever that thread is stuck or starved,
/// what it is asked to do waits too.
void node::run_on_link(std::function<void()> what) {
  constexpr peer_id nobody{0};
  link_->send(nobody, frame{.kind = frame_kind::heartbeat, .lane = messages::lane::control},
              [what = std::move(what)](const result<void>& refused) {
                if (!refused && refused.error().code == errc::peer_lost) what();
              });
}

void node::judge() {
  const auto told = settings_.tell ? settings_.tell() : std::vector<messages::element>();
  step([this, &told](auto&) {
    for (auto& [name, who] : correspondents_) {
      if (std::exchange(who.heard, false)) liveness_.heard(name);
    }
    return perform_liveness(liveness_.tick(std::chrono::steady_clock::now()), told);
  });
}

void node::lose(const std::string& other, const error& why) {
  run_on_link([this, other, why] { step([&](auto& core) { return core.lose(other, why); }); });
}

neighbourhood::effects node::perform_liveness(const liveness::effects& what,
                                              const std::vector<messages::element>& told) {
  neighbourhood::effects out;
  const auto add = [&out](neighbourhood::effects more) {
    std::move(more.begin(), more.end(), std::back_inserter(out));
  };
  for (const auto& effect : what) {
    if (const auto* beat = std::get_if<liveness::beat>(&effect)) {
      add(core_->send(
          beat->node,
          {.kind = frame_kind::heartbeat, .lane = messages::lane::control, .body = told}));
    } else if (const auto* doubt = std::get_if<liveness::examine>(&effect)) {
      add(perform_liveness(liveness_.examined(doubt->node, state_of(doubt->process))));
    } else if (const auto* gone = std::get_if<liveness::lost>(&effect)) {
      add(core_->lose(gone->node, with_own_pause(gone->why)));
    }
  }
  return out;
}

error node::with_own_pause(error why) const {
  const auto pause = liveness_.stood_still(std::chrono::steady_clock::now());
  if (!pause) return why;
  return {why.code,
          why.text + " (this process itself had stood still for " + in_seconds(*pause) + ")"};
}

std::optional<milliseconds> node::stood_still() {
  const std::scoped_lock lock(mutex_);
  return liveness_.stood_still(std::chrono::steady_clock::now());
}

void node::publish(const std::string& name, caf::strong_actor_ptr actor) {
  const std::scoped_lock lock(mutex_);
  published_[name] = std::move(actor);
}

result<std::string> node::join(const std::string& address, milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  auto connected = std::make_shared<std::promise<result<peer_id>>>();
  auto outcome = connected->get_future();
  link_->connect(address, timeout,
                 [connected](const result<peer_id>& peer) { connected->set_value(peer); });
  const auto peer = outcome.get();
  if (!peer) return tl::unexpected(peer.error());

  std::unique_lock lock(mutex_);
  std::optional<std::string> name;
  const bool settled = changed_.wait_until(lock, deadline, [&] {
    name = core_->name_of(*peer);
    return !name || !name->empty();
  });
  if (!settled) return fail(errc::timed_out, "no hello from the node at " + address);
  if (!name) return fail(errc::peer_lost, "the node at " + address + " closed the connection");
  return *name;
}

bool node::wait_for(const std::string& other, milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return core_->connected(other); });
}

result<caf::strong_actor_ptr> node::find(const std::string& where, const std::string& actor,
                                         milliseconds timeout) {
  frame out{.kind = frame_kind::lookup};
  out.body.push_back({"lookup", {{actor}}});
  lookup answer;
  auto outcome = answer.get_future();
  {
    const std::scoped_lock lock(mutex_);
    if (auto lost = core_->lost(where)) return tl::unexpected(*lost);
    out.request_id = next_lookup_++;
    lookups_.emplace(out.request_id, std::pair(where, std::move(answer)));
  }
  const auto number = out.request_id;
  send(where, std::move(out));
  if (outcome.wait_for(timeout) == std::future_status::ready) return outcome.get();
  const std::scoped_lock lock(mutex_);
  lookups_.erase(number);
  return fail(errc::timed_out, "node '" + where + "' did not say where '" + actor + "' is");
}

messages::actor_ref node::address_of(const caf::strong_actor_ptr& actor) {
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = names_.find(actor->node()); found != names_.end())
      return {found->second, core_->address_of(found->second), actor->id()};
  }
  return {settings_.name, address_, make_reachable(actor)};
}

caf::actor_id node::make_reachable(const caf::strong_actor_ptr& actor) {
  const auto id = actor->id();
  auto& known = reachable_[id % reachable_.size()];
  if (known.load(std::memory_order_acquire) == id) return id;
  if (!system_.registry().get<caf::strong_actor_ptr>(id)) system_.registry().put(id, actor);
  known.store(id, std::memory_order_release);
  return id;
}

std::string node::name_of(const caf::node_id& id) {
  const std::scoped_lock lock(mutex_);
  const auto found = names_.find(id);
  return found == names_.end() ? std::string() : found->second;
}

caf::strong_actor_ptr node::resolve(const messages::actor_ref& address) {
  if (address.node == settings_.name)
    return system_.registry().get<caf::strong_actor_ptr>(address.id);
  std::optional<error> lost;
  {
    const std::scoped_lock lock(mutex_);
    core_->heard_of(address.node, address.address);
    lost = core_->lost(address.node);
  }
  const auto id = id_of(address.node);
  auto proxy = proxies_.get_or_put(id, address.id);
  if (lost) proxies_.erase(id, address.id, to_caf(*lost));
  return proxy;
}

caf::node_id node::id_of(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  for (const auto& [id, known] : names_) {
    if (known == name) return id;
  }
  auto id = make_id(name, static_cast<std::uint32_t>(names_.size() + 1));
  names_.emplace(id, name);
  return id;
}

caf::strong_actor_ptr node::make_proxy(caf::node_id id, caf::actor_id actor) {
  std::shared_ptr<const route> way;
  {
    const std::scoped_lock lock(mutex_);
    way = route_to(names_.at(id));
  }
  caf::actor_config config;
  auto proxy = caf::make_actor<remote_actor, caf::strong_actor_ptr>(
      actor, std::move(id), &system_, config, static_cast<message_carrier&>(*this), open_, way);
  send(way->name, {.kind = frame_kind::monitor, .target = actor});
  return proxy;
}

}  // namespace troupe::actors
