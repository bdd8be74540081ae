#pragma once

#include "actors/wire/fields.hpp"

namespace troupe::tests {

/// Nobody's.
struct no_directory final : actors::actor_directory {
  messages::actor_ref address_of(const caf::strong_actor_ptr&) override { return {}; }
  caf::strong_actor_ptr resolve(const messages::actor_ref&) override { return {}; }
};

}  // namespace troupe::tests
