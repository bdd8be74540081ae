#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "messages/link/simulated/simulated_state.hpp"
#include "messages/link/wire/carrier.hpp"
#include "messages/link/wire/connection.hpp"

namespace troupe::messages {

/// Carries one end of a connection over a simulated network: everything that would pass a door in
/// order, frames and chunks each in a time of their own. One thread.
class simulated_carrier final : public carrier {
 public:
  /// Where this end stands.
  struct place {
    std::shared_ptr<simulated_network::state> network;
    std::shared_ptr<simulated_node> node;
    peer_id peer;
  };

  /// For a connection that this side makes; for one that came in.
  simulated_carrier(place here, std::string to);
  simulated_carrier(place here, std::shared_ptr<simulated_connection> from);

  void serve(connection& whom) { connection_ = &whom; }

  /// A message has come from the network.
  void arrive(const std::shared_ptr<const simulated_message>& what);
  /// What was sent has left, or, a chunk, has arrived.
  void done(std::uint64_t ticket);
  [[nodiscard]] bool is_of(const simulated_connection* which) const {
    return which == connection_now_.get();
  }

  void dial() override;
  void send(sending& what) override;
  void receive(receiving& what) override;
  void drop(void* offered) override { offered_.erase(offered); }
  void hang_up() override;

 private:
  const place here_;
  const std::string to_;
  const unsigned end_;
  connection* connection_ = nullptr;
  std::shared_ptr<simulated_connection> connection_now_;
  std::map<std::uint64_t, sending*> under_way_;  // by ticket
  std::uint64_t next_ticket_ = 1;
  std::map<const void*, std::shared_ptr<const simulated_message>> offered_;
};

}  // namespace troupe::messages
