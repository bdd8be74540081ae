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

  std::string failure = {};  // of the run; empty: it has none

  static void fields(auto& self, auto& f) { f(self.failure); }
};

/// Has a node's host try to connect to where other nodes listen, and to send much there.
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
  bool swallows = false;    // there was a connection, but nothing large came through
  std::string why;

  static void fields(auto& self, auto& f) {
    f(self.which, self.is_silent, self.swallows, self.why);
  }
};

/// All but these were reached.
struct nodes_reached {
  static constexpr auto declared = travels("nodes_reached");

  std::vector<unreached> but;

  static void fields(auto& self, auto& f) { f(self.but); }
};

/// What memory there is for more on the node.
struct ask_memory {
  static constexpr auto declared = travels("ask_memory");

  static void fields(auto&, auto&) {}
};

/// As of engine::free_memory.
struct memory_told {
  static constexpr auto declared = travels("memory_told");

  std::string host;  // its name for itself
  std::uint64_t bytes = 0;
  std::uint64_t swap_bytes = 0;
  std::uint64_t group_limit_bytes = 0;

  static void fields(auto& self, auto& f) {
    f(self.host, self.bytes, self.swap_bytes, self.group_limit_bytes);
  }
};

using common_messages =
    message_list<acknowledged, shut_down, reach_nodes, nodes_reached, ask_memory, memory_told>;

}  // namespace troupe::actors
