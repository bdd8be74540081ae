#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "actors/remote/liveness.hpp"
#include "actors/remote/neighbourhood.hpp"
#include "messages/base/error.hpp"
#include "messages/base/ids.hpp"
#include "messages/frame.hpp"

namespace troupe::actors {

/// What one node knows of other nodes and their actors: which nodes are connected (neighbourhood)
/// and alive (liveness), where frames for a node go, which actors are published here, which lookups
/// are open, and which remote actors are linked to local ones. Actors are known by their ids. Pure:
/// each event returns the effects to perform, in order; no CAF, thread, clock or I/O.
class remote_core {
 public:
  using clock = liveness::clock;

  using connect = neighbourhood::connect;
  using transmit = neighbourhood::transmit;
  using close = neighbourhood::close;
  using examine = liveness::examine;
  using doubt = liveness::doubt;
  struct route_changed {  ///< What is sent to `node` may go straight to `peer` from here on, after
                          ///< all effects before; 0: it goes through `send` again.
    std::string node;
    peer_id peer;
  };

  using received = neighbourhood::received;        ///< For an actor of this node.
  using undelivered = neighbourhood::undelivered;  ///< A lookup fails instead.
  struct refuse {                                  ///< Send `answer`, with `why` as its body.
    std::string node;
    messages::frame answer;
    error why;
  };
  struct told {  ///< A heartbeat that says more than that the node is alive.
    std::string node;
    std::vector<messages::element> what;
  };
  struct watch {  ///< Tell `node` when our actor ends, or that it has.
    std::string node;
    std::uint64_t actor = 0;
  };
  struct remote_link {
    std::uint64_t there = 0;  ///< An actor of another node.
    std::uint64_t here = 0;   ///< The actor of ours that ends with it.
    auto operator<=>(const remote_link&) const = default;
  };
  struct linked {  ///< The actor there is to be watched if the one here exists.
    std::string node;
    remote_link between;
  };
  struct actor_ended {  ///< An actor of another node; `notice` has the reason as its body, if any.
    std::string node;
    messages::frame notice;
  };
  struct node_down {  ///< As neighbourhood's. Its linked actors of ours are to end.
    std::string node;
    error why;
    std::vector<remote_link> broken;
  };
  using effect = std::variant<connect, transmit, close, examine, doubt, route_changed, received,
                              undelivered, refuse, told, watch, linked, actor_ended, node_down>;
  using effects = std::vector<effect>;

  /// `address`: where this node listens; `self`: where it runs; `build`: what its program is.
  remote_core(const std::string& name, const std::string& address, const process_identity& self,
              const liveness_settings& settings, neighbourhood::admission admit = {},
              const std::string& build = {})
      : name_(name),
        nodes_(name, address, self, std::move(admit), build),
        liveness_(settings, self) {}

  // Events of the link.
  effects peer_up(peer_id peer) { return follow(nodes_.peer_up(peer)); }
  effects peer_down(peer_id peer, const error& why, clock::time_point now);
  effects frame_arrived(peer_id peer, messages::frame in);
  effects connected_to(const std::string& node, peer_id peer);
  effects connect_failed(const std::string& node, const error& why);

  /// Sends to a node, connecting first if need be.
  effects send(const std::string& node, messages::frame out);
  /// See neighbourhood.
  effects lose(const std::string& node, const error& why);
  effects leave() { return follow(nodes_.leave()); }
  effects break_off(const error& why) { return follow(nodes_.break_off(why)); }

  /// To be called once per interval. `heard`: nodes whose frames did not come through
  /// `frame_arrived`; `beats_say` is sent with our heartbeats.
  effects tick(clock::time_point now, const std::vector<std::string>& heard,
               const std::vector<messages::element>& beats_say);
  /// What the operating system said of a process to `examine`.
  effects examined(const std::string& node, process_state state, clock::time_point now);

  /// Lets other nodes find an actor by a name; a later one takes its place.
  void publish(const std::string& name, messages::actor_ref actor) {
    published_[name] = std::move(actor);
  }

  struct question {
    std::uint64_t number = 0;
    effects to_perform;
  };
  /// Asks a node for the actor of that name. The outcome is available once an answer has arrived or
  /// no answer can arrive any more, and until `forget_lookup`.
  [[nodiscard]] question look_up(const std::string& node, const std::string& actor);
  /// The first answer, which holds an address or an error; nullopt while the lookup is open.
  [[nodiscard]] std::optional<result<messages::frame>> outcome_of(std::uint64_t number) const;
  void lookup_failed(std::uint64_t number, const error& why);
  void forget_lookup(std::uint64_t number) { lookups_.erase(number); }

  /// As neighbourhood.
  void heard_of(const std::string& node, const std::string& address) {
    nodes_.heard_of(node, address);
  }
  void listens_at(const std::string& address) { nodes_.listens_at(address); }
  void moved(const std::string& node, const std::string& address) { nodes_.moved(node, address); }
  [[nodiscard]] bool alone() const noexcept { return nodes_.alone(); }
  [[nodiscard]] const std::string& address_of(const std::string& node) const {
    return nodes_.address_of(node);
  }
  [[nodiscard]] std::optional<std::string> name_of(peer_id peer) const {
    return nodes_.name_of(peer);
  }
  [[nodiscard]] bool connected(const std::string& node) const { return nodes_.connected(node); }
  [[nodiscard]] std::optional<error> lost(const std::string& node) const {
    return nodes_.lost(node);
  }

  /// How long this process itself stood still; see liveness.
  [[nodiscard]] std::optional<std::chrono::milliseconds> stood_still(clock::time_point now) const {
    return liveness_.stood_still(now);
  }

 private:
  struct lookup {
    std::string node;
    std::optional<result<messages::frame>> outcome = {};
  };

  /// What the events of the cores inside mean for this node.
  effects follow(neighbourhood::effects what);
  effects follow(const liveness::effects& what, const std::vector<messages::element>& beats_say,
                 clock::time_point now);
  void take(received in, effects& out);
  void take_lookup(const received& in, effects& out);
  void take_answer(received in);
  [[nodiscard]] node_down end_of(const std::string& node, const error& why);
  [[nodiscard]] error with_own_pause(const error& why, clock::time_point now) const;

  const std::string name_;
  neighbourhood nodes_;
  liveness liveness_;
  std::map<std::string, messages::actor_ref> published_;
  std::map<std::uint64_t, lookup> lookups_;
  std::uint64_t last_lookup_ = 0;
  std::map<std::string, std::set<remote_link>> links_;  // by the node of the other end
};

}  // namespace troupe::actors
