#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "messages/link/simulated/simulated_carrier.hpp"

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
  void post(std::function<void()> what);
  void destroy();
  [[nodiscard]] const link_counters& counters() const { return counters_; }

  void crash();

  // For connections.
  void accept(const std::shared_ptr<simulated_connection>& connection);
  void deliver(peer_id to, const simulated_connection* by,
               const std::shared_ptr<const simulated_message>& what);
  void sent(peer_id from, const simulated_connection* by, std::uint64_t ticket);
  void broken(peer_id which, const simulated_connection* by, const error& why, bool was_reached);

 private:
  struct peer {
    std::unique_ptr<simulated_carrier> by;
    std::unique_ptr<connection> core;
    connection::clock::time_point due = connection::clock::time_point::max();
  };

  link_events guarded(link_events events);
  template <class Callback>
  Callback guarded(Callback done);
  template <class From>
  peer& add_peer(const std::string& name, connection::role mine, From from);
  peer* find(peer_id which);
  peer* find(peer_id which, const simulated_connection* by);
  [[nodiscard]] connection::clock::time_point clock_now() const;
  [[nodiscard]] key_share make_share() const;
  void soon();
  void act();
  void let_act(connection& which);

  const std::shared_ptr<simulated_network::state> network_;
  const link_options options_;
  bool alive_ = true;
  std::uint64_t next_peer_ = 1;
  link_counters counters_;
  buffer_pool pool_;
  event_queue events_;
  std::vector<connection*> attention_;
  const connection_shared shared_;
  std::map<peer_id, peer> peers_;
};

}  // namespace troupe::messages
