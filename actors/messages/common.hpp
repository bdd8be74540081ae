#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/messages/declaration.hpp"

/// What several conversations say.
namespace troupe::actors {

/// Done, with nothing to say.
struct acknowledged {
  static constexpr auto declared = travels("acknowledged");

  static void fields(auto&, auto&) {}
};

/// Ends the node's process in order.
struct shut_down {
  static constexpr auto declared = travels("shut_down");

  static void fields(auto&, auto&) {}
};

/// Has a node's host try to connect to where other nodes listen.
struct reach_nodes {
  static constexpr auto declared = travels("reach_nodes");

  std::vector<std::string> addresses;  // "host:port"
  std::int64_t patience_ms = 0;        // for all of them together

  static void fields(auto& self, auto& f) { f(self.addresses, self.patience_ms); }
};

/// An address where nobody was reached.
struct unreached {
  std::uint32_t which = 0;  // of the addresses
  bool is_silent = false;   // there was no answer; else the system said why
  std::string why;

  static void fields(auto& self, auto& f) { f(self.which, self.is_silent, self.why); }
};

/// All but these were reached.
struct nodes_reached {
  static constexpr auto declared = travels("nodes_reached");

  std::vector<unreached> but;

  static void fields(auto& self, auto& f) { f(self.but); }
};

using common_messages = message_list<acknowledged, shut_down, reach_nodes, nodes_reached>;

}  // namespace troupe::actors
