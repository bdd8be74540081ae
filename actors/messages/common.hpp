#pragma once

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

using common_messages = message_list<acknowledged, shut_down>;

}  // namespace troupe::actors
