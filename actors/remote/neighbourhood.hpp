#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "actors/base/process_identity.hpp"
#include "messages/base/error.hpp"
#include "messages/base/ids.hpp"
#include "messages/frame.hpp"

namespace troupe::actors {

/// What a node says of itself to a node that it is connected to: its hello. A value.
struct greeting {
  std::string name;
  std::string address;  ///< Where it listens, for others to come back to.
  process_identity process = {};
  std::string build = {};  ///< Of its program: see node_settings::build.
};

/// What a node says of itself in the first frame of a connection; nullopt: that is none. Pure.
[[nodiscard]] std::optional<greeting> read_hello(const messages::frame& hello);

/// Who the other nodes are and how to reach them: the core of a node. It names connections by the
/// hello that opens them, connects to a node at the first frame for it, keeps frames in order while
/// the connection is made, and knows who left and who was lost. Pure: each event returns the
/// effects to perform, in order; no thread, clock or I/O.
class neighbourhood {
 public:
  struct connect {  ///< Connect to `node`; report `connected_to` or `connect_failed`.
    std::string node;
    std::string address;
  };
  struct transmit {
    peer_id peer;
    messages::frame what;
  };
  struct close {
    peer_id peer;
    error why;
    bool is_leaving = false;  ///< All connections end, with the node.
  };
  struct received {  ///< A frame from a node that has said who it is.
    std::string node;
    messages::frame what;
  };
  struct undelivered {  ///< A frame given to `send` that will not arrive.
    std::string node;
    messages::frame what;
    error why;
  };
  struct node_up {  ///< A node is connected and has said who it is.
    std::string node;
    process_identity process;
  };
  struct node_down {  ///< Once for each node that was up: peer_lost, or cancelled if it said
                      ///< goodbye.
    std::string node;
    error why;
  };
  using effect = std::variant<connect, transmit, close, received, undelivered, node_up, node_down>;
  using effects = std::vector<effect>;

  /// Whether this node may join. Errors: bad_config, which is sent to it.
  using admission = std::function<result<void>(const greeting& who)>;

  /// `address` is where this node listens, for others to come back to; `self` is where it runs,
  /// and `build` what its program is. Without `admit` every node is admitted.
  neighbourhood(std::string name, std::string address, process_identity self = {},
                admission admit = {}, std::string build = {})
      : self_{std::move(name), std::move(address), std::move(self), std::move(build)},
        admit_(std::move(admit)) {}

  effects peer_up(peer_id peer);
  effects peer_down(peer_id peer, const error& why);
  effects frame_arrived(peer_id peer, messages::frame in);
  effects connected_to(const std::string& node, peer_id peer);
  effects connect_failed(const std::string& node, const error& why);
  /// A connected node is dead or hung: its connection is closed, with the reason if it still
  /// listens.
  effects lose(const std::string& node, const error& why);

  /// Sends to a node that is known (`heard_of`), and connects to it first if necessary.
  effects send(const std::string& node, messages::frame out);

  /// Says goodbye to everybody; done once `alone`.
  effects leave();
  /// Leaves instead as one that cannot go on: the others count it as lost, with this reason.
  effects break_off(const error& why);
  [[nodiscard]] bool alone() const noexcept { return names_.empty(); }

  /// Notes where a node listens. A node once lost stays lost.
  void heard_of(const std::string& node, const std::string& address);
  /// This node, or another one, listens at another address from now on. Existing connections stay.
  void listens_at(const std::string& address) { self_.address = address; }
  void moved(const std::string& node, const std::string& address) {
    neighbours_[node].address = address;
  }

  [[nodiscard]] const std::string& address_of(const std::string& node) const;
  /// The name behind a connection; empty before its hello, nullopt when there is none (any more).
  [[nodiscard]] std::optional<std::string> name_of(peer_id peer) const;
  /// Whether a node is connected and has said hello.
  [[nodiscard]] bool connected(const std::string& node) const;
  /// The connection on which frames for a connected node are sent.
  [[nodiscard]] std::optional<peer_id> peer_of(const std::string& node) const;
  /// Why a node is gone; nullopt while it is not.
  [[nodiscard]] std::optional<error> lost(const std::string& node) const;

 private:
  /// Frames that may overtake a hello, at most.
  static constexpr std::size_t most_early = 64;

  /// Never forgotten, so that a handle to an actor of a lost node fails by name.
  struct neighbour {
    std::string address;
    process_identity process;     // once it was connected
    std::optional<peer_id> peer;  // the connection used for sending
    std::optional<error> lost;
    bool connecting = false;               // since the first frame for it
    bool leaving = false;                  // it said goodbye
    std::vector<messages::frame> backlog;  // waits for the connection
  };

  effects came_early(peer_id peer, messages::frame in);
  effects greeted(peer_id peer, const messages::frame& hello);
  [[nodiscard]] result<void> admitted(const greeting& who) const;
  effects gone(const std::string& node, const error& why);
  void close_all(const std::string& node, const error& why, effects& out) const;

  greeting self_;
  admission admit_;
  std::map<std::string, neighbour> neighbours_;
  std::map<peer_id, std::string> names_;    // empty until the peer's hello
  std::map<peer_id, std::string> awaited_;  // which node is to say hello there
  std::map<peer_id, std::vector<messages::frame>> early_;
  bool left_ = false;
};

}  // namespace troupe::actors
