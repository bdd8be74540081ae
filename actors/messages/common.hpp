#pragma once

#include "actors/messages/declaration.hpp"

/// What several conversations say.
namespace troupe::actors {

/// Done, with nothing to say.
struct acknowledged {
  static constexpr auto declared = travels("acknowledged");

  template <class Self, class Fields>
  static void fields(Self&, Fields&) {}
};

/// Ends the node's process in order.
struct shut_down {
  static constexpr auto declared = travels("shut_down");

  template <class Self, class Fields>
  static void fields(Self&, Fields&) {}
};

using common_messages = message_list<acknowledged, shut_down>;

}  // namespace troupe::actors
