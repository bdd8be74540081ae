#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "messages/link/simulated_peer.hpp"

namespace troupe::messages {

/// One link's place in a simulated network: its peers and what its owner is told. One thread.
class simulated_node : public std::enable_shared_from_this<simulated_node> {
 public:
  simulated_node(std::shared_ptr<simulated_network::state> network, link_events events,
                 limits bounds);

  // For the link's owner. Nothing is told from within these but from `destroy`.
  void connect(const std::string& address, std::chrono::milliseconds timeout, link::connected done);
  void send(peer_id to, frame message, link::completion done);
  void close(peer_id which, error reason);
  void destroy();
  [[nodiscard]] const link_counters& counters() const { return counters_; }

  void crash();

  // For connections.
  void accept(const std::shared_ptr<simulated_connection>& connection);
  void deliver(peer_id to, const simulated_message& what);
  void broken(peer_id which, const error& why);

 private:
  link_events guarded(link_events events);
  template <class Callback>
  Callback guarded(Callback done);
  simulated_peer& add_peer(const std::string& name, unsigned end,
                           const std::shared_ptr<simulated_connection>& connection);
  simulated_peer* find(peer_id which);
  void soon(peer_id which);
  template <class Action>
  void later(simulated_network::state::time when, peer_id which, Action action);
  void settle(peer_id which);

  const std::shared_ptr<simulated_network::state> network_;
  const limits bounds_;
  bool alive_ = true;
  std::uint64_t next_peer_ = 1;
  link_counters counters_;
  buffer_pool pool_;
  event_queue events_;
  const simulated_shared shared_;
  std::map<peer_id, std::unique_ptr<simulated_peer>> peers_;
};

}  // namespace troupe::messages
