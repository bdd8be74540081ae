#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "engine/base/free_memory.hpp"

/// What several conversations say.
namespace troupe::actors {

/// The answer to a request that was carried out and returns nothing.
struct acknowledged {
  static constexpr auto declared = travels("acknowledged");
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
};

/// What the node has beyond what it has taken.
struct memory_told {
  static constexpr auto declared = travels("memory_told");

  std::string host;  // its name for itself
  engine::free_memory room = {};

  static void fields(auto& self, auto& f) {
    f(self.host, self.room.bytes, self.room.swap_bytes, self.room.group_limit_bytes);
  }
};

/// The interfaces of the node's host, by which other nodes might reach it.
struct ask_interfaces {
  static constexpr auto declared = travels("ask_interfaces");
};

struct interfaces_told {
  static constexpr auto declared = travels("interfaces_told");

  std::vector<std::string> addresses;  // with prefixes: "10.0.0.2/24"
  bool may_move = false;               // nobody has said where the node is to listen

  static void fields(auto& self, auto& f) { f(self.addresses, self.may_move); }
};

/// Has a node that may move listen elsewhere.
struct listen_there {
  static constexpr auto declared = travels("listen_there");

  std::string wanted;  // an address of its host, or a network: "10.0.0.0/8"

  static void fields(auto& self, auto& f) { f(self.wanted); }
};

struct listens_there {
  static constexpr auto declared = travels("listens_there");

  std::string address;  // a meeting_place

  static void fields(auto& self, auto& f) { f(self.address); }
};

using common_messages =
    message_list<acknowledged, shut_down, reach_nodes, nodes_reached, ask_memory, memory_told,
                 ask_interfaces, interfaces_told, listen_there, listens_there>;

}  // namespace troupe::actors
