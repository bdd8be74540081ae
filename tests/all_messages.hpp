#pragma once

#include "actors/protocol.hpp"
#include "actors/wire/message_registry.hpp"

namespace troupe::tests {

/// Every message of a training run.
inline const actors::message_registry& all_messages() {
  static const actors::message_registry types = [] {
    actors::message_registry made;
    actors::add_protocol(made);
    return made;
  }();
  return types;
}

}  // namespace troupe::tests
