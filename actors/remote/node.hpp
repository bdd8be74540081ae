#pragma once

#include <caf/actor_addr.hpp>
#include <caf/actor_system.hpp>
#include <caf/node_id.hpp>
#include <caf/proxy_registry.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/remote/lookups/correspondents.hpp"
#include "actors/remote/lookups/join_refusals.hpp"
#include "actors/remote/lookups/listening_address.hpp"
#include "actors/remote/lookups/own_actors.hpp"
#include "actors/remote/remote_actor.hpp"
#include "actors/remote/remote_core.hpp"
#include "actors/remote/ticker.hpp"
#include "actors/wire/gate.hpp"
#include "actors/wire/message_registry.hpp"
#include "messages/link/link.hpp"

namespace troupe::actors {

class arrivals;
class request_inbox;

/// Makes a node's link, which reports to these events.
using link_factory = std::function<result<std::unique_ptr<messages::link>>(messages::link_events)>;

/// Has `tick` called on a link's own thread, once an interval, until that link ends. Does not wait
/// for it.
using timekeeper = std::function<void(std::function<void()> tick)>;

/// A node's name, where it listens ("host:port"; port 0: any free one), and what it reports to its
/// owner.
struct node_settings {
  std::string name;
  std::string listen = "";  ///< As of link::listen; empty: whatever suits the link.
  /// A connected node is gone: it was lost (peer_lost) or left in order (cancelled). Called on the
  /// link's thread.
  std::function<void(const std::string& node, const error& why)> on_node_down = {};
  /// Whether this node may join; empty: every node may, except a second one of the same name.
  /// Called on the link's thread; must not wait. Errors: bad_config, which is sent to that node.
  std::function<result<void>(const greeting& who)> admit = {};
  /// A connection was not admitted; `why` says whose. Called on the link's thread; must not wait.
  std::function<void(const error& why)> on_refused = {};
  /// How soon a node that hangs or is no longer reachable counts as lost.
  liveness_settings liveness = {};
  /// Keeps the time of this node's ticks, at each of which it sends heartbeats and decides who is
  /// alive; empty: a thread of the node's own does (see ticker), and says which actor holds the
  /// link's thread for long. A simulated network keeps the time of its nodes itself. Called once,
  /// by `start`.
  timekeeper keep_time = {};
  /// What this node's heartbeats carry, and who receives what those of others carry. Called on the
  /// link's thread; neither may wait.
  std::function<std::vector<messages::element>()> tell = {};
  std::function<void(const std::string& node, const std::vector<messages::element>&)> on_told = {};
  /// A node of another host is silent and may be lost soon: see liveness::doubt. Called on the
  /// link's thread; must not wait.
  std::function<void(const std::string& node)> on_doubt = {};
  /// Identifies this process's program for the `admit` of other nodes; empty: not given.
  std::string build = {};
};

/// One process's place in the cluster: its name, its link, and the way to the actors of other
/// nodes. A handle to a remote actor is an ordinary CAF handle: request, send, monitor and link
/// work as for a local one, and when its process is lost every outstanding request to it is
/// answered with errc::peer_lost and its monitors and links are notified. A node is lost within a
/// second after it has died, is stopped, hangs or cannot be reached (see liveness); it cannot
/// return.
///
/// A message that exceeds a limit of the link (messages::limits) fails at its sender, with
/// errc::bad_frame and a text that names the message, the limit and the value. A request is
/// answered with that error, also if its answer is too large. For any other message the sender gets
/// a caf::error, which ends an event-based actor unless it has set an error handler.
///
/// A resource: made after the actor system, destroyed before it. Safe to use from any thread;
/// `join` and `find` wait, so not from the link's own.
class node final : public actor_directory,
                   private caf::proxy_registry::backend,
                   private message_carrier {
 public:
  /// Opens the link and listens. `types` outlives the node. Errors: those of the link.
  [[nodiscard]] static result<std::unique_ptr<node>> start(caf::actor_system& system,
                                                           const message_registry& types,
                                                           node_settings settings,
                                                           const link_factory& make_link);
  /// Says goodbye to the other nodes.
  ~node() override;

  [[nodiscard]] const std::string& name() const noexcept { return settings_.name; }
  /// Where it listens now. The text lives as long as this node.
  [[nodiscard]] const std::string& address() const noexcept { return address_.now(); }
  [[nodiscard]] messages::link_stats link_stats() const { return link_->stats(); }
  /// What to give lendable_tensors; null: its link copies all tensors.
  [[nodiscard]] std::shared_ptr<messages::shared_memory> memory() const { return link_->memory(); }

  /// Listens at another address (see link::listen); connected nodes stay connected. Other nodes are
  /// not informed: whoever asked for this calls their `note_address`. Returns the new address.
  /// Waits for the link, so not to be called on its thread. Errors: address_unavailable,
  /// io_failed without descriptors; the old address then remains.
  [[nodiscard]] result<std::string> listen_at(const std::string& address);

  /// Notes that another connected node now listens at this address: handles of its actors that are
  /// sent to other nodes from now on carry it.
  void note_address(const std::string& other, const std::string& address);

  /// How long this process itself has just stood still, if so long that others may have counted it
  /// as lost (see liveness).
  [[nodiscard]] std::optional<std::chrono::milliseconds> stood_still();

  /// Counts a connected node as lost from now on, as if it had fallen silent: peer_lost, with the
  /// text of `why`. From any thread; does not wait.
  void lose(const std::string& other, const error& why);

  /// Leaves as a node that cannot go on: the others count it as lost, with this reason (peer_lost),
  /// and not as one that has left in order. From any thread; does not wait.
  void break_off(const error& why);

  /// Lets other nodes find `actor` by a name. Like any actor whose handle was sent to another node,
  /// it is kept alive until it ends by itself or this node ends.
  void publish(const std::string& name, caf::strong_actor_ptr actor);

  /// Connects to the node at `address` and waits for its name. Errors: address_unavailable,
  /// timed_out, peer_lost.
  [[nodiscard]] result<std::string> join(const std::string& address,
                                         std::chrono::milliseconds timeout);

  /// Waits until another node has joined this one. False when `timeout` passes first.
  [[nodiscard]] bool wait_for(const std::string& node, std::chrono::milliseconds timeout);

  /// Whether it was lost, or has left: none of its name can join any more.
  [[nodiscard]] bool has_lost(const std::string& node);

  /// The actor that another node published. Errors: peer_lost, unknown_target, timed_out.
  [[nodiscard]] result<caf::strong_actor_ptr> find(const std::string& where,
                                                   const std::string& actor,
                                                   std::chrono::milliseconds timeout);

  /// The name of the node that a remote handle's `node()` stands for; empty if it is not known
  /// here.
  [[nodiscard]] std::string name_of(const caf::node_id& id);

  /// A local actor becomes reachable under the returned address; a remote one keeps its own.
  [[nodiscard]] messages::actor_ref address_of(const caf::strong_actor_ptr& actor) override;
  /// A handle to the actor at `address`; its node is connected at the first message.
  [[nodiscard]] caf::strong_actor_ptr resolve(const messages::actor_ref& address) override;

 private:
  /// What CAF and senders know another node by.
  struct known_node {
    caf::node_id id;
    std::shared_ptr<route> way;
  };

  node(caf::actor_system& system, const message_registry& types, node_settings settings);
  [[nodiscard]] messages::link_events link_events();
  void start_ticking();
  void say_goodbye();

  // caf::proxy_registry::backend and message_carrier
  caf::strong_actor_ptr make_proxy(caf::node_id node, caf::actor_id actor) override;
  void set_last_hop(caf::node_id*) override {}
  void forward(const route& to, caf::abstract_actor& target,
               caf::mailbox_element_ptr what) override;
  void tell_link(messages::frame_kind what, const caf::strong_actor_ptr& local,
                 const caf::strong_actor_ptr& remote) override;

  /// Runs an event of the core and performs its effects: what goes to the link while the core is
  /// locked, so that frames keep their order; what calls an actor or the owner afterwards.
  template <class Event>
  void step(Event event);
  void perform_locked(remote_core::effects& effects);
  void perform(remote_core::effect& effect);
  void send(const std::string& to, messages::frame out);
  void connect(const remote_core::connect& to);
  void on_tick();                 // at each tick, on the link's thread
  void say_who_holds_the_link();  // at each tick, on the ticker's

  // Frames from other nodes, by kind. On the link's thread.
  void arrived(peer_id peer, messages::frame&& in);
  void peer_left(peer_id peer, const error& why);
  [[nodiscard]] caf::strong_actor_ptr handle_of(correspondent& at, caf::actor_id actor);
  void received(correspondent& from, const messages::frame& in);
  void deliver(correspondent& from, const messages::frame& in);
  void deliver_response(correspondent& from, const messages::frame& in);
  void refuse(const std::string& from, const messages::frame& request, const error& why);
  void answer(const std::string& to, messages::frame out, const error& why);
  void watch(const std::string& from, caf::actor_id target);
  void actor_ended(const remote_core::actor_ended& what);
  void node_down(const remote_core::node_down& what);

  /// Puts a message and its sender into a frame. Errors: those of the registry; unknown_target.
  [[nodiscard]] result<void> put(caf::mailbox_element& what, messages::frame& out);
  void undelivered(const messages::frame& out, const error& why);
  /// For a frame that is about to be sent: tells whoever sent it when it exceeds a limit of the
  /// link. Empty for one that cannot.
  [[nodiscard]] messages::link::completion when_refused(peer_id peer, const messages::frame& out);
  /// `what` has neither fields nor tensors any more.
  void refused(peer_id peer, const messages::frame& what, const error& why);
  /// An error in place of an answer; `of` has the answer's types, and nothing else in its body.
  void send_instead(const std::string& to, messages::frame of, const error& why);
  void tell_sender(const caf::strong_actor_ptr& sender, const error& why);
  [[nodiscard]] request_inbox& requests() const;
  void put_error(messages::frame& out, const error& what);
  [[nodiscard]] error error_in(const messages::frame& in);
  /// Both call under the lock.
  [[nodiscard]] known_node& known(const std::string& name);
  [[nodiscard]] const std::string* name_behind(const caf::node_id& id) const;

  caf::actor_system& system_;
  const message_registry& types_;
  const node_settings settings_;
  listening_address address_;  // changed under mutex_
  caf::proxy_registry proxies_;
  const caf::strong_actor_ptr inbox_;  // of the requests that wait for an answer: see requests()
  std::shared_ptr<gate> open_ = std::make_shared<gate>();  // actors come in through it
  exported_actors exported_;

  // Guarded by mutex_, which is never held while an actor or the owner is called.
  std::mutex mutex_;
  std::condition_variable changed_;
  join_refusals refusals_;
  std::unique_ptr<remote_core> core_;
  std::map<std::string, known_node> nodes_;

  // The link's thread's, so that what comes in takes no lock.
  const std::unique_ptr<arrivals> arrivals_;
  correspondents correspondents_;
  target_actors targets_;

  caf::actor_id said_to_hold_ = 0;        // the ticker's
  std::unique_ptr<messages::link> link_;  // its thread calls into everything above
  std::unique_ptr<ticker> ticker_;        // last: it uses the link; null with a timekeeper
};

}  // namespace troupe::actors
